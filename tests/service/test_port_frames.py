from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from port_house import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, client_frame, close_payload
from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, Message, Ping, TextMessage

from klbr_trio.service.port.frames import FRAME_BYTES, close_frame, frame, is_close, ping_frame
from klbr_trio.service.port.meter import Meter


def meter(*, message_bytes: int = 1000, pieces: int = 50) -> Meter:
    return Meter(message_bytes=message_bytes, pieces=pieces)


def as_a_client_reads(data: bytes) -> list[object]:
    client = Connection(ConnectionType.CLIENT)
    client.receive_data(data)
    return list(client.events())


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, FRAME_BYTES])
def test_a_frame_is_what_a_client_reads(size: int) -> None:
    text = "x" * size
    (event,) = as_a_client_reads(frame(text))
    assert event == TextMessage(data=text, frame_finished=True, message_finished=True)


@given(st.lists(st.text(max_size=200), max_size=5))
def test_frames_joined_are_frames(texts: list[str]) -> None:
    events = as_a_client_reads(b"".join(frame(text.encode()) for text in texts))
    assert [event.data for event in events if isinstance(event, TextMessage)] == texts


def test_a_frame_over_the_bound_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        frame("x" * (FRAME_BYTES + 1))


@given(st.text(max_size=300))
def test_a_close_frame_keeps_its_code_and_cuts_its_reason(reason: str) -> None:
    data = close_frame(1012, reason)
    (event,) = as_a_client_reads(data)
    assert isinstance(event, CloseConnection)
    assert event.code == 1012
    assert reason.startswith(event.reason or "")
    assert is_close(data)
    assert not is_close(frame(reason))
    assert not is_close(ping_frame())


def test_a_ping_is_a_ping() -> None:
    assert as_a_client_reads(ping_frame()) == [Ping(payload=b"")]


control = st.tuples(st.sampled_from([PING, PONG]), st.binary(max_size=125)).map(
    lambda pair: client_frame(pair[0], pair[1])
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    opcode = draw(st.sampled_from([TEXT, BINARY]))
    parts = draw(st.lists(st.text("aé", max_size=100).map(str.encode), min_size=1, max_size=4))
    sent = b""
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        sent += client_frame(CONTINUATION if number else opcode, part, fin=last)
        sent += b"" if last else draw(st.just(b"") | control)
    return sent


@given(st.lists(messages() | control, max_size=6), st.data())
def test_what_is_in_order_passes_whole_however_it_is_cut(
    sent: list[bytes], data: st.DataObject
) -> None:
    left, watch = b"".join(sent), meter(pieces=10_000)
    passed = b""
    while left:
        piece = left[: data.draw(st.integers(1, len(left)))]
        fit = watch.take(piece, frames=data.draw(st.integers(1, 3)))
        assert fit > 0
        passed, left = passed + piece[:fit], left[fit:]
    assert passed == b"".join(sent)
    assert watch.violation is None
    assert not watch.unfinished
    assert watch.units == len(sent)


@given(st.lists(messages() | control, max_size=3), st.integers(1, 200))
def test_a_cut_stream_is_unfinished_exactly_between_messages(sent: list[bytes], cut: int) -> None:
    whole = b"".join(sent)
    edges = {sum(map(len, sent[:n])) for n in range(len(sent) + 1)}
    at = min(cut, len(whole))
    watch = meter()
    watch.take(whole[:at], frames=1000)
    assert watch.unfinished is (at not in edges)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (client_frame(TEXT, b"x", masked=False), 1002),
        (client_frame(TEXT, b"x", rsv=4), 1002),
        (client_frame(TEXT, b"x", rsv=1), 1002),
        (client_frame(0x3, b"x"), 1002),
        (client_frame(0xB, b"x"), 1002),
        (client_frame(PING, b"x" * 126), 1002),
        (client_frame(PING, b"", fin=False), 1002),
        (client_frame(CONTINUATION, b"x"), 1002),
        (client_frame(TEXT, b"x", fin=False) + client_frame(TEXT, b"x"), 1002),
        (client_frame(TEXT, b"x" * 1001), 1009),
        (client_frame(BINARY, b"x" * 70_000), 1009),
        (client_frame(TEXT, b"x" * 600, fin=False) + client_frame(CONTINUATION, b"x" * 401), 1009),
        (client_frame(TEXT, b"", fin=False) + client_frame(CONTINUATION, fin=False) * 50, 1009),
    ],
)
def test_a_violation_stops_at_its_frame_and_lets_what_was_before_pass(
    bad: bytes, code: int
) -> None:
    good = client_frame(TEXT, b"good") + client_frame(PING)
    watch = meter()
    data = good + bad
    passed = 0
    while passed < len(data) and watch.violation is None:
        passed += watch.take(data[passed:], frames=2)
    assert watch.violation is not None
    assert watch.violation.code == code
    assert len(good) <= passed < len(data)


def test_a_message_in_tiny_pieces_is_a_violation() -> None:
    watch = meter(pieces=20)
    for byte in client_frame(TEXT, b"x" * 500):
        watch.take(bytes((byte,)), frames=100)
    assert watch.violation is not None
    assert watch.violation.code == 1009


def test_bytes_are_counted_and_not_characters() -> None:
    watch = meter(message_bytes=1000)
    watch.take(client_frame(TEXT, ("\N{GRINNING FACE}" * 251).encode()), frames=10)
    assert watch.violation is not None


def test_after_the_close_frame_everything_passes_and_nothing_counts() -> None:
    watch = meter()
    data = client_frame(CLOSE, close_payload(1000)) + b"\xff" * 5000
    assert watch.take(data, frames=1) == len(data)
    assert watch.peer_closed
    assert watch.violation is None


@given(st.binary(max_size=200), st.integers(1, 7))
def test_whatever_the_meter_passes_the_parser_reads_without_an_error_of_its_own(
    data: bytes, step: int
) -> None:
    watch, parser = meter(), Connection(ConnectionType.SERVER)
    for at in range(0, len(data), step):
        piece = data[at : at + step]
        fit = watch.take(piece, frames=1000)
        if watch.violation is not None or watch.peer_closed:
            break
        parser.receive_data(piece[:fit])
        faults = [e for e in parser.events() if isinstance(e, CloseConnection)]
        # Lengths that are not minimal and text that is not UTF-8 are the parser's to find.
        assert all(fault.code in {1002, 1007} for fault in faults)
        assert not any(isinstance(e, Message) and len(e.data) > 1000 for e in parser.events())
        if faults:
            break
