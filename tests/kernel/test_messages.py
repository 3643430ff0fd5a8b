"""Frames and messages: exactly what a worker sends, and nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from klbr_trio.kernel.channel import FrameBuffer
from klbr_trio.kernel.messages import (
    LARGEST_FRAME,
    Call,
    Done,
    Hello,
    ProtocolViolation,
    StartFailed,
    decode,
    encode,
    printable,
)

DONE = {
    "op": "done",
    "cell": 1,
    "ok": True,
    "value": "2",
    "error": None,
    "interrupted": False,
    "threads": 0,
    "tasks": 1,
}
WAIT = {"seconds": 1.0, "until_ms": None, "reason": None}


def call(target: str, args: object, **changes: object) -> dict[str, object]:
    return {"op": "call", "rid": 1, "cell": 2, "target": target, "args": args, **changes}


def decoded(message: object) -> object:
    return decode(json.dumps(message).encode())


def test_messages_of_a_worker() -> None:
    assert decoded(DONE) == Done(
        cell=1, ok=True, value="2", error=None, interrupted=False, threads=0, tasks=1
    )
    assert decoded({"op": "hello", "protocol": 1, "python": "3", "digest": "d"}) == Hello("3", "d")
    assert decoded({"op": "failed", "error": "e"}) == StartFailed("e")
    assert decoded(call("local.send", {"text": "hi"})) == Call(1, 2, "local.send", {"text": "hi"})
    assert decoded(call("runtime.wait", WAIT)) == Call(1, 2, "runtime.wait", WAIT)
    assert decoded(call("runtime.done", {})) == Call(1, 2, "runtime.done", {})


def test_lone_surrogates_are_replaced_and_pairs_are_kept() -> None:
    message = decode(b'{"op":"failed","error":"\\ud800 \\ud83d\\ude00 \\u0000"}')
    assert message == StartFailed("\ufffd \U0001f600 \0")
    assert printable("a\udfffb") == "a\ufffdb"


@pytest.mark.parametrize(
    "message",
    [
        5,
        {},
        {"op": None},
        {"op": ["done"]},
        {"op": "nope"},
        {**DONE, "more": 1},
        {**DONE, "cell": -1},
        {**DONE, "cell": True},
        {**DONE, "cell": 1.0},
        {**DONE, "cell": 2**53 + 1},
        {**DONE, "ok": 1},
        {**DONE, "ok": False},
        {**DONE, "error": "but ok"},
        {**DONE, "value": 2},
        {k: v for k, v in DONE.items() if k != "tasks"},
        {"op": "hello", "protocol": 2, "python": "3", "digest": "d"},
        call("local.send", {"text": ""}),
        call("local.send", {"text": 5}),
        call("local.send", {"text": "a", "more": 1}),
        call("local.send", ["a"]),
        call("local.shout", {"text": "a"}),
        call("local.send", {"text": "a"}, rid="1"),
        call("runtime.done", {"x": 1}),
        call("runtime.wait", {}),
        call("runtime.wait", {**WAIT, "until_ms": 5}),
        call("runtime.wait", {**WAIT, "seconds": None}),
        call("runtime.wait", {**WAIT, "seconds": 1}),
        call("runtime.wait", {**WAIT, "seconds": -1.0}),
        call("runtime.wait", {**WAIT, "seconds": 1e16}),
        call("runtime.wait", {**WAIT, "reason": "x" * 1001}),
        call("runtime.wait", {**WAIT, "seconds": None, "until_ms": -5}),
        {"op": "failed", "error": [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]},
    ],
)
def test_what_no_worker_sends_is_a_violation(message: object) -> None:
    with pytest.raises(ProtocolViolation):
        decoded(message)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"[" * 200_000, b'{"op": NaN}', b'{"op": 1e999}', b"1" * 10_000, b"null"],
)
def test_what_is_no_json_is_a_violation(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode(body)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_else(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode(body)


@given(st.lists(st.binary(max_size=50), max_size=10), st.integers(1, 30))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    bodies: list[bytes], step: int
) -> None:
    data = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    buffer = FrameBuffer()
    found = []
    for start in range(0, len(data), step):
        buffer.feed(data[start : start + step])
        while (body := buffer.next()) is not None:
            found.append(body)
    assert found == bodies


def test_a_frame_over_the_limit_is_refused_by_its_length_alone() -> None:
    buffer = FrameBuffer()
    buffer.feed((LARGEST_FRAME + 1).to_bytes(4, "big"))
    with pytest.raises(ProtocolViolation):
        buffer.next()


def test_what_goes_to_the_kernel_is_json_of_this_host() -> None:
    frame = encode({"op": "run", "code": "é"})
    assert json.loads(frame[4:]) == {"op": "run", "code": "é"}
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    with pytest.raises(ValueError, match="JSON"):
        encode({"value": float("nan")})
    with pytest.raises(TypeError):
        encode({"value": object()})
