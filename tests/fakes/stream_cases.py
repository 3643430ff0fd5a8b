"""What providers send, as bytes, and what must be concluded: one case for each shape."""

from __future__ import annotations

import gzip
import json
from typing import Any, Final

import attrs

from fakes.provider import call_fragment, chunk, sse

STOP: Final = chunk(finish="stop")
CALLS: Final = chunk(finish="tool_calls")


@attrs.frozen
class Reads:
    """The answer counts, and says this."""

    text: str = ""
    reasoning: str = ""
    codes: tuple[str, ...] = ()
    finish: str | None = "stop"
    errors: tuple[str, ...] = ()
    """A word of what the model is told, for each call that can't run."""

    hint: str = ""
    """A word of the hint; empty if there is none."""


@attrs.frozen
class Fails:
    """The attempt failed, with this kind and these words."""

    kind: str
    words: str


@attrs.frozen
class Case:
    name: str
    body: bytes
    expect: Reads | Fails
    encoding: str = ""


def data(*texts: str, end: str = "\n\n") -> bytes:
    """Events with exactly this data."""
    return "".join(f"data: {text}{end}" for text in texts).encode()


def fragment(**fields: Any) -> dict[str, object]:
    """A delta with one call fragment; name and arguments go below `function`."""
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    return {"tool_calls": [{**fields, **({"function": function} if function else {})}]}


def arguments(code: str) -> str:
    return json.dumps({"code": code})


def one_call(raw: object, *, name: object = "python", finish: str | None = "tool_calls") -> bytes:
    """A stream with one call whose arguments are exactly this."""
    delta = fragment(index=0, id="a", name=name, arguments=raw)
    return sse(chunk(delta), chunk(finish=finish))


HELLO = sse(chunk({"content": "Hel"}), chunk({"content": "lo"}), STOP)
LONG = "x" * 200_000

FRAMING: Final = [
    Case("plain", HELLO, Reads("Hello")),
    Case("no space after the colon", HELLO.replace(b"data: ", b"data:"), Reads("Hello")),
    Case("only one space is stripped", HELLO.replace(b"data: ", b"data:  "), Reads("Hello")),
    Case("crlf", HELLO.replace(b"\n", b"\r\n"), Reads("Hello")),
    Case(
        "crlf, data lines joined",
        b'data: {"choices": [{"delta":\r\ndata: {"content": "Joined"}}]}\r\n\r\n' + sse(STOP),
        Reads("Joined"),
    ),
    Case("no space after a name", b"event:error\ndata:no such model\n\n", Fails("REFUSED", "no such model")),
    Case("the name of one event is not that of the next", b"event: error\n\n" + HELLO, Reads("Hello")),
    Case("done and more in one event", HELLO.replace(b"\n\ndata: [DONE]", b"\ndata: [DONE]\ndata: junk"), Reads("Hello")),
    Case("done with spaces", HELLO.replace(b"[DONE]", b" [DONE] "), Reads("Hello")),
    Case("lone cr", HELLO.replace(b"\n", b"\r"), Reads("Hello")),
    Case("byte-order mark", b"\xef\xbb\xbf" + HELLO, Reads("Hello")),
    Case("comments", b": hi\n\n" + HELLO.replace(b"data", b": x\n:\n\ndata"), Reads("Hello")),
    Case(
        "ids, retries and names",
        HELLO.replace(b"data: {", b"id: 4\nretry: 9\nevent: message\ndata: {") + b"id: 9\n\n",
        Reads("Hello"),
    ),
    Case("fields without a colon", b"data\n\nid\n\n" + HELLO, Reads("Hello")),
    Case("last event without an end", HELLO.removesuffix(b"data: [DONE]\n\n").rstrip(), Reads("Hello")),
    Case("done without an end", HELLO.rstrip(), Reads("Hello")),
    Case("done in quotes", HELLO.replace(b"[DONE]", b'"[DONE]"'), Reads("Hello")),
    Case("nothing counts after done", HELLO + data('{"error": "late"}', "junk"), Reads("Hello")),
    Case(
        "data lines are joined",
        b'data: {"choices": [{"index": 0,\ndata: "delta": {"content": "Joined"},\ndata:\n'
        b'data: "finish_reason": "stop"}]}\n\n',
        Reads("Joined"),
    ),
    Case("no blank lines between", HELLO.replace(b"\n\n", b"\n") + b"\n", Reads("Hello")),
    Case(
        "unicode separators are text",
        sse(STOP).replace(b"data: {", b'data: {"x": "\xe2\x80\xa8\xc2\x85",', 1)
        + b"",
        Fails("SLIP", "empty"),
    ),
    Case(
        "unicode separators in words",
        'data: {"choices":[{"delta":{"content":"a\u2028b\u2029c\x85d"}}]}\n\n'.encode() + sse(STOP),
        Reads("a\u2028b\u2029c\x85d"),
    ),
    Case("a long line", sse(chunk({"content": LONG}), STOP), Reads(LONG)),
    Case("many bytes a character", sse(chunk({"content": "日本 🙂"}), STOP), Reads("日本 🙂")),
    Case(
        "raw utf-8",
        json.dumps(chunk({"content": "日本 🙂"}), ensure_ascii=False)
        .encode()
        .join([b"data: ", b"\n\n"])
        + sse(STOP),
        Reads("日本 🙂"),
    ),
    Case("gzip", gzip.compress(HELLO), Reads("Hello"), encoding="gzip"),
    Case("gzip under its old name", gzip.compress(HELLO), Reads("Hello"), encoding="X-GZIP"),
    Case("gzip cut off", gzip.compress(HELLO)[:40], Fails("BROKE_OFF", ""), encoding="gzip"),
    Case("not gzip at all", HELLO, Fails("BROKE_OFF", "compressed"), encoding="gzip"),
    Case(
        "heartbeats as data",
        data("", "null", "{}", '{"type": "ping"}', "[]", "0") + b"event: ping\ndata: {}\n\n" + HELLO,
        Reads("Hello"),
    ),
    Case("a heartbeat with a status", data('{"status": "ok", "message": "alive"}') + HELLO, Reads("Hello")),
    Case("lines of json without framing", HELLO.replace(b"data: ", b""), Reads("Hello")),
    Case("an event that is not json", data("{oops") + HELLO, Fails("BROKE_OFF", "not JSON")),
    Case("cut in the middle of an event", HELLO[:150], Fails("BROKE_OFF", "cut")),
    Case(
        "cut in the middle of an event after the end",
        sse(chunk({"content": "Hello"}), STOP, done=False) + b'data: {"usa',
        Reads("Hello"),
    ),
    Case("cut between events", sse(chunk({"content": "Hello"}), done=False), Fails("BROKE_OFF", "cut")),
    Case("a whole call is not run if the answer was cut", sse(chunk(call_fragment("go()")), done=False), Fails("BROKE_OFF", "cut")),
    Case("done without a finish reason", sse(chunk({"content": "Hello"})), Reads("Hello", finish=None)),
    Case("nothing", b"", Fails("BROKE_OFF", "without a single whole event")),
    Case("only keep-alives", b": wait\n\n: wait\n\n", Fails("BROKE_OFF", "without a single whole event")),
    Case("only done", sse(), Fails("SLIP", "empty")),
    Case("a page", b"<!doctype html><title>Log in</title><body>x", Fails("REFUSED", "Log in")),
    Case("a page in lines", b"<html>\n<head><title>Hi</title>\n\n</head>", Fails("REFUSED", "Hi")),
    Case("plain words", b"404 page not found\n", Fails("PATH", "404 page not found")),
]  # fmt: skip

WHOLE = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Whole"}, "finish_reason": "stop"}],
    "usage": {"total_tokens": 4},
}  # fmt: skip

CHOICES: Final = [
    Case("one json body", json.dumps(WHOLE).encode(), Reads("Whole")),
    Case("one json body, pretty", json.dumps(WHOLE, indent=1).encode(), Reads("Whole")),
    Case(
        "one json body with blank lines",
        json.dumps(WHOLE, indent=1).replace("\n", "\n\n").encode(),
        Reads("Whole"),
    ),
    Case(
        "one json body without a finish reason",
        json.dumps({"choices": [{"message": {"content": "Whole"}}]}).encode(),
        Reads("Whole", finish=None),
    ),
    Case("one json body, cut", json.dumps(WHOLE).encode()[:60], Fails("BROKE_OFF", "cut")),
    Case("message instead of delta", sse(WHOLE), Reads("Whole")),
    Case(
        "a message repeats the deltas",
        sse(chunk({"content": "Who"}), chunk({"content": "le"}), WHOLE),
        Reads("Whole"),
    ),
    Case("a message brings the rest", sse(chunk({"content": "Who"}), WHOLE), Reads("Whole")),
    Case("a message tells another story", sse(chunk({"content": "Wha"}), WHOLE), Reads("Wha")),
    Case(
        "a message repeats the call",
        sse(
            chunk(call_fragment("go()")),
            {"choices": [{"message": call_fragment("go()"), "finish_reason": "tool_calls"}]},
        ),
        Reads(codes=("go()",), finish="tool_calls"),
    ),
    Case(
        "a message repeats the call without an id",
        sse(
            chunk(call_fragment("go()")),
            {"choices": [{"message": {"tool_calls": [
                {"function": {"name": "python", "arguments": arguments("go()")}}]},
                "finish_reason": "tool_calls"}]},
        ),
        Reads(codes=("go()",), finish="tool_calls"),
    ),
    Case(
        "a message completes a cut call",
        sse(
            chunk(fragment(index=0, id="call_1", name="python", arguments='{"code": "g')),
            {"choices": [{"message": call_fragment("go()"), "finish_reason": "tool_calls"}]},
        ),
        Reads(codes=("go()",), finish="tool_calls"),
    ),
    Case(
        "a message names a call that the deltas did not",
        sse(
            chunk(fragment(index=0, id="call_1", arguments='{"code": "g')),
            {"choices": [{"message": call_fragment("go()"), "finish_reason": "tool_calls"}]},
        ),
        Reads(codes=("go()",), finish="tool_calls"),
    ),
    Case(
        "a whole call is not replaced by a message",
        sse(
            chunk(call_fragment("go()")),
            {"choices": [{"message": call_fragment("other()"), "finish_reason": "tool_calls"}]},
        ),
        Reads(codes=("go()",), finish="tool_calls"),
    ),
    Case(
        "a message brings a second call",
        sse(
            chunk(call_fragment("go()")),
            {"choices": [{"message": {"tool_calls": [
                *call_fragment("go()")["tool_calls"],  # type: ignore[misc]
                *call_fragment("stop()", provider_id="call_2")["tool_calls"]]},
                "finish_reason": "tool_calls"}]},
        ),
        Reads(codes=("go()", "stop()"), finish="tool_calls"),
    ),
    Case("delta as a string", data('{"choices":[{"delta":"Hi"}]}') + sse(STOP), Reads("Hi")),
    Case(
        "choices empty, null and missing",
        data('{"choices":[]}', '{"choices":null}', '{"object":"x"}') + HELLO
        + data('{"choices":[],"usage":{}}'),
        Reads("Hello"),
    ),
    Case(
        "delta null and missing",
        data('{"choices":[{"delta":null}]}', '{"choices":[{"index":0}]}')
        + sse(chunk({"content": "Hello"}), {"choices": [{"delta": None, "finish_reason": "stop"}]}),
        Reads("Hello"),
    ),
    Case(
        "a second choice",
        data('{"choices":[{"index":1,"delta":{"content":"no"},"finish_reason":"length"}]}') + HELLO,
        Reads("Hello"),
    ),
    Case("choices that are no objects", data('{"choices": [null, 3, {"index": 0, "delta": {"content": "Hi"}}]}') + sse(STOP), Reads("Hi")),
    Case("spaces around a finish reason", sse(chunk({"content": "x"}), chunk(finish=" stop\n")), Reads("x")),
    Case("a finish reason in capitals", sse(chunk({"reasoning": "x"}), chunk(finish="STOP")), Reads("", "x", finish="STOP", hint="only reasoning")),
    Case("a list of chunks", sse([chunk({"content": "Hello"}), STOP]), Reads("Hello")),
    Case(
        "finish reasons that are none",
        sse(*(chunk({"content": word}, finish=finish) for word, finish in
              (("a", ""), ("b", "null"), ("c", " "), ("d", "None"))), STOP),
        Reads("abcd"),
    ),
    Case(
        "the first finish reason counts",
        sse(chunk(call_fragment("go()")), CALLS, STOP, chunk(finish="length")),
        Reads(codes=("go()",), finish="tool_calls"),
    ),
    Case("stop with a call", sse(chunk(call_fragment("go()")), STOP), Reads(codes=("go()",))),
    Case("a call promised, none came", sse(chunk({"content": "x"}), CALLS), Fails("SLIP", "without a call")),
    Case("an empty answer", sse(chunk({"content": "\n"}), STOP), Fails("SLIP", "empty")),
    Case("an unknown reason with text", sse(chunk({"content": "x"}), chunk(finish="tired")), Reads("x", finish="tired")),
    Case("an unknown reason with nothing", sse(chunk(finish="tired")), Fails("SLIP", "tired")),
    Case(
        "an unknown reason with thoughts alone",
        sse(chunk({"reasoning": "x"}), chunk(finish="tired")),
        Fails("SLIP", "tired"),
    ),
    Case("filtered", sse(chunk({"content": "x"}), chunk(finish="content_filter")), Fails("REFUSED", "content_filter")),
    Case("filtered, in capitals", sse(chunk({"content": "x"}), chunk(finish="SAFETY")), Fails("REFUSED", "SAFETY")),
    Case("a filter stops whole calls too", sse(chunk(call_fragment("go()")), chunk(finish="content_filter")), Fails("REFUSED", "filter")),
    Case(
        "broken off",
        sse(chunk({"content": "x"}), chunk(finish="insufficient_system_resource")),
        Fails("BROKE_OFF", "insufficient_system_resource"),
    ),
    Case("error as a reason", sse(chunk({"content": "x"}), chunk(finish="error")), Fails("BROKE_OFF", "error")),
]  # fmt: skip

WORDS: Final = [
    Case("null is no word", sse(chunk({"role": None, "content": None}), chunk({"content": "a"}), STOP), Reads("a")),
    Case("refusal", sse(chunk({"content": None, "refusal": "I "}), chunk({"refusal": "won't."}), STOP), Reads("I won't.")),
    Case(
        "parts",
        sse(
            chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm "}]}]}),
            chunk({"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "ok"}]},
                               {"type": "text", "text": "Hi"}, {"type": "image", "url": "x"}, "!", 3, None]}),
            STOP,
        ),
        Reads("Hi!", "hm ok"),
    ),
    Case(
        "thinking parts and a field of its own",
        sse(chunk({"content": [{"type": "thinking", "thinking": "part"}], "reasoning": "field"}), STOP),
        Reads("", "part", hint="only reasoning"),
    ),
    Case("unknown parts are skipped", sse(chunk({"content": [{"type": "mystery", "text": "no"}, {"text": "yes"}]}), STOP), Reads("yes")),
    Case("parts nested without end", sse(chunk({"content": [{"type": "text", "text": [[[[[[["deep"]]]]]]]}, "x"]}), STOP), Reads("x")),
    Case("one part alone", sse(chunk({"content": {"type": "text", "text": "Hi"}}), STOP), Reads("Hi")),
    Case("reasoning", sse(chunk({"reasoning": "why"}), chunk({"content": "x"}), STOP), Reads("x", "why")),
    Case("reasoning_content", sse(chunk({"reasoning_content": "why"}), chunk({"content": "x"}), STOP), Reads("x", "why")),
    Case(
        "the same reasoning under two names",
        sse(chunk({"reasoning": "why", "reasoning_content": "why"}), chunk({"content": "x"}), STOP),
        Reads("x", "why"),
    ),
    Case("reasoning as an object", sse(chunk({"reasoning": {"content": "why"}}), chunk({"content": "x"}), STOP), Reads("x", "why")),
    Case(
        "reasoning in details alone",
        sse(chunk({"reasoning_details": [{"type": "reasoning.text", "text": "why", "index": 0}]}), chunk({"content": "x"}), STOP),
        Reads("x", "why"),
    ),
    Case("only reasoning", sse(chunk({"reasoning": "why"}), STOP), Reads("", "why", hint="only reasoning")),
    Case("only reasoning, and done alone", sse(chunk({"reasoning": "why"})), Reads("", "why", finish=None, hint="only reasoning")),
    Case(
        "a think block",
        sse(*(chunk({"content": piece}) for piece in ("\n<th", "ink>pl", "an</thi", "nk>Go", " on")), STOP),
        Reads("Go on", "plan"),
    ),
    Case("a think block in one piece", sse(chunk({"content": "<think>plan</think>Go"}), STOP), Reads("Go", "plan")),
    Case("a think block without an end", sse(chunk({"content": "<think>plan </thi"}), STOP), Reads("", "plan </thi", hint="only reasoning")),
    Case("a think tag later on", sse(chunk({"content": "Say <think>x</think>."}), STOP), Reads("Say <think>x</think>.")),
    Case("what only looks like a tag", sse(chunk({"content": "<thing> 1 < 2"}), STOP), Reads("<thing> 1 < 2")),
    Case("the beginning of a tag, and no more", sse(chunk({"content": "<thi"}), STOP), Reads("<thi")),
    Case("a tag that breaks off as text", sse(chunk({"content": "<thi"}), chunk({"content": "s is text"}), STOP), Reads("<this is text")),
    Case("a closing tag that is none", sse(chunk({"content": "<think>a </th"}), chunk({"content": "ing> b</think>c"}), STOP), Reads("c", "a </thing> b")),
    Case("thinking under another tag", sse(chunk({"content": "<thinking>a</think>b</thinking>c"}), STOP), Reads("c", "a</think>b")),
    Case("spaces first", sse(chunk({"content": "  "}), chunk({"content": " x"}), STOP), Reads("   x")),
    Case("a lone surrogate", data(r'{"choices":[{"delta":{"content":"a\udcafb"}}]}') + sse(STOP), Reads("a\ufffdb")),
    Case(
        "a lone surrogate at the end",
        data(r'{"choices":[{"delta":{"content":"a\ud83d"}}]}') + sse(STOP),
        Reads("a\ufffd"),
    ),
    Case(
        "half a character in each of two deltas",
        data(r'{"choices":[{"delta":{"content":"a\ud83d"}}]}', r'{"choices":[{"delta":{"content":"\ude42b"}}]}')
        + sse(STOP),
        Reads("a🙂b"),
    ),
    Case("invalid utf-8", b'data: {"choices":[{"delta":{"content":"a\xffb"}}]}\n\n' + sse(STOP), Reads("a\ufffdb")),
    Case("the token limit in the words", sse(chunk({"content": "x"}), chunk(finish="length")), Reads("x", finish="length", hint="token limit")),
    Case("nothing but the token limit", sse(chunk(finish="length")), Fails("SLIP", "length")),
]  # fmt: skip


def _pieces(*deltas: dict[str, object], finish: str = "tool_calls") -> bytes:
    return sse(*map(chunk, deltas), chunk(finish=finish))


WHOLE_A, WHOLE_B = arguments("a()"), arguments("b()")
RUNS_A = Reads(codes=("a()",), finish="tool_calls")
RUNS_BOTH = Reads(codes=("a()", "b()"), finish="tool_calls")

CALLS_CASES: Final = [
    Case("in fragments", _pieces(
        fragment(index=0, id="x", type="function", name="python", arguments=""),
        *(fragment(index=0, arguments=piece) for piece in (WHOLE_A[:5], WHOLE_A[5:]))), RUNS_A),
    Case("null later", _pieces(
        fragment(index=0, id="x", name="python", arguments=None),
        fragment(index=0, id=None, name=None, arguments=WHOLE_A), {"tool_calls": [{"index": 0, "function": None}]}), RUNS_A),
    Case("empty later", _pieces(
        fragment(index=0, id="x", name="python", arguments=WHOLE_A[:5]),
        fragment(index=0, id="", name="", arguments=WHOLE_A[5:])), RUNS_A),
    Case("repeated later", _pieces(
        *(fragment(index=0, id="x", name="python", arguments=piece) for piece in (WHOLE_A[:5], WHOLE_A[5:]))), RUNS_A),
    Case("a new id each time", _pieces(
        *(fragment(index=0, id=f"x{n}", name="python", arguments=piece)
          for n, piece in enumerate((WHOLE_A[:3], WHOLE_A[3:6], WHOLE_A[6:])))), RUNS_A),
    Case("a new id each time, no index", _pieces(
        *(fragment(id=f"x{n}", name="python", arguments=piece)
          for n, piece in enumerate((WHOLE_A[:3], WHOLE_A[3:6], WHOLE_A[6:])))), RUNS_A),
    Case("a new id each time, the name once, no index", _pieces(
        fragment(id="x0", name="python", arguments=""), fragment(id="x1", arguments=WHOLE_A[:6]),
        fragment(id="x2", arguments=WHOLE_A[6:])), RUNS_A),
    Case("the name comes last", _pieces(
        fragment(index=0, id="x", arguments=WHOLE_A), fragment(index=0, name="python")), RUNS_A),
    Case("the name in pieces", _pieces(
        fragment(index=0, id="x", name="pyt", arguments=WHOLE_A), fragment(index=0, name="hon")), RUNS_A),
    Case("no index at all", _pieces(
        fragment(id="x", name="python", arguments=WHOLE_A[:5]), fragment(arguments=WHOLE_A[5:])), RUNS_A),
    Case("an index that comes late", _pieces(
        fragment(id="x", name="python", arguments=WHOLE_A[:5]), fragment(index=0, arguments=WHOLE_A[5:])), RUNS_A),
    Case("no index, two ids", _pieces(
        fragment(id="x", name="python", arguments=WHOLE_A[:5]), fragment(id="y", name="python", arguments=WHOLE_B[:5]),
        fragment(id="x", arguments=WHOLE_A[5:]), fragment(id="y", arguments=WHOLE_B[5:])), RUNS_BOTH),
    Case("the first index is one", _pieces(fragment(index=1, id="x", name="python", arguments=WHOLE_A)), RUNS_A),
    Case("an index in text", _pieces(
        fragment(index="0", id="x", name="python", arguments=WHOLE_A), fragment(index="1", id="y", name="python", arguments=WHOLE_B)), RUNS_BOTH),
    Case("the same index, two calls", _pieces(
        fragment(index=0, id="x", name="python", arguments=WHOLE_A), fragment(index=0, id="y", name="python", arguments=WHOLE_B)), RUNS_BOTH),
    Case("the same index, two calls in fragments", _pieces(
        fragment(index=0, id="x", name="python", arguments=WHOLE_A),
        fragment(index=0, id="y", name="python", arguments=""), fragment(index=0, arguments=WHOLE_B)), RUNS_BOTH),
    Case("interleaved", _pieces(
        {"tool_calls": [{"index": n, "id": f"x{n}", "function": {"name": "python", "arguments": ""}} for n in (0, 1)]},
        {"tool_calls": [{"index": 1, "function": {"arguments": WHOLE_B[:4]}}, {"index": 0, "function": {"arguments": WHOLE_A[:4]}}]},
        fragment(index=0, arguments=WHOLE_A[4:]), fragment(index=1, arguments=WHOLE_B[4:])), RUNS_BOTH),
    Case("several in one list, without index and id", _pieces(
        {"tool_calls": [{"function": {"name": "python", "arguments": raw}} for raw in (WHOLE_A, WHOLE_B)]}), RUNS_BOTH),
    Case("identical calls are two calls", _pieces(
        fragment(index=0, id="x", name="python", arguments=WHOLE_A), fragment(index=1, id="y", name="python", arguments=WHOLE_A)),
        Reads(codes=("a()", "a()"), finish="tool_calls")),
    Case("calls with one id", _pieces(
        fragment(index=0, id="x", name="python", arguments=WHOLE_A), fragment(index=1, id="x", name="python", arguments=WHOLE_B)), RUNS_BOTH),
    Case("calls null, empty, a lone object", _pieces(
        {"tool_calls": None}, {"tool_calls": []}, {"tool_calls": fragment(index=0, id="x", name="python", arguments=WHOLE_A)["tool_calls"][0]}), RUNS_A),  # type: ignore[index]
    Case("calls that are no objects", _pieces({"tool_calls": [None, 3]}, fragment(index=0, id="x", name="python", arguments=WHOLE_A)), RUNS_A),
    Case("one without an index, then one with", _pieces(
        fragment(id="x", name="python", arguments=WHOLE_A), fragment(index=1, id="y", name="python", arguments=WHOLE_B)), RUNS_BOTH),
    Case("one without an index, then one whose name comes late", _pieces(
        fragment(id="x", name="python", arguments=WHOLE_A), fragment(index=1, id="y"), fragment(index=1, name="python", arguments=WHOLE_B)), RUNS_BOTH),
    Case("one without an index, then one without an id", _pieces(
        fragment(id="x", name="python", arguments=WHOLE_A), fragment(index=1, name="python", arguments=WHOLE_B)), RUNS_BOTH),
    Case("the second call's name comes last", _pieces(
        fragment(index=0, id="x", name="python", arguments=WHOLE_A), fragment(index=1, arguments=WHOLE_B), fragment(index=1, id="y", name="python")), RUNS_BOTH),
    Case("the name in every delta, no id, no index", _pieces(
        fragment(name="python", arguments=""), fragment(name="python", arguments=WHOLE_A)), RUNS_A),
    Case("no index, and only the second has an id", _pieces(
        fragment(name="python", arguments=WHOLE_A), fragment(id="y", name="python", arguments=""), fragment(arguments=WHOLE_B)), RUNS_BOTH),
    Case("an index in text and as a number", _pieces(
        fragment(index="0", id="x", name="python", arguments=WHOLE_A[:5]), fragment(index=0, arguments=WHOLE_A[5:])), RUNS_A),
    Case("indexes that are none", _pieces(
        fragment(index="first", id="x", name="python", arguments=WHOLE_A[:5]), fragment(index=[0], arguments=WHOLE_A[5:])), RUNS_A),
    Case("a list with ids, in another order later", _pieces(
        {"tool_calls": [{"id": key, "function": {"name": "python", "arguments": raw[:4]}} for key, raw in (("x", WHOLE_A), ("y", WHOLE_B))]},
        {"tool_calls": [{"id": key, "function": {"arguments": raw[4:]}} for key, raw in (("y", WHOLE_B), ("x", WHOLE_A))]}), RUNS_BOTH),
    Case("id and name come last", _pieces(fragment(index=0, arguments=WHOLE_A), fragment(index=0, id="x", name="python")), RUNS_A),
    Case("the same index, only the second has an id", _pieces(
        fragment(index=0, name="python", arguments=WHOLE_A), fragment(index=0, id="y", name="python", arguments=WHOLE_B)), RUNS_BOTH),
    Case("an id alone is a call", _pieces({"tool_calls": [{"index": 0, "id": "x"}]}), Reads(errors=("names no tool",), finish="tool_calls")),
    Case("a name alone is a call", _pieces(fragment(index=0, name="python")), Reads(errors=("`code` is missing",), finish="tool_calls")),
    Case("arguments alone are a call", _pieces(fragment(index=0, arguments=WHOLE_A)), Reads(errors=("names no tool",), finish="tool_calls")),
    Case("an index that is no number", _pieces(
        fragment(index=True, id="x", name="python", arguments=WHOLE_A[:5]), fragment(index=None, arguments=WHOLE_A[5:])), RUNS_A),
    Case("an id that is a number", _pieces(
        fragment(index=0, id=7, name="python", arguments=WHOLE_A), fragment(index=0, id=8, name="python", arguments=WHOLE_B)), RUNS_BOTH),
    Case("no index, two calls behind each other", _pieces(
        fragment(id="x", name="python", arguments=WHOLE_A[:5]), fragment(arguments=WHOLE_A[5:]),
        fragment(id="y", name="python", arguments=""), fragment(arguments=WHOLE_B)), RUNS_BOTH),
    Case("a list without index, in fragments", _pieces(
        {"tool_calls": [{"function": {"name": "python", "arguments": raw[:4]}} for raw in (WHOLE_A, WHOLE_B)]},
        {"tool_calls": [{"function": {"arguments": raw[4:]}} for raw in (WHOLE_A, WHOLE_B)]}), RUNS_BOTH),
    Case("an empty object, and then another call", _pieces(
        fragment(index=0, id="x", name="python", arguments="{}"), fragment(index=0, id="x", name="python", arguments=WHOLE_A)), RUNS_A),
    Case("a ghost of spaces", _pieces(
        {"tool_calls": [{"index": 0, "function": {"arguments": " "}}]}, fragment(index=1, id="x", name="python", arguments=WHOLE_A)), RUNS_A),
    Case("a ghost", _pieces(
        {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}, fragment(index=1, id="x", name="python", arguments=WHOLE_A)), RUNS_A),
    Case("name and arguments on the call itself", _pieces({"tool_calls": [{"index": 0, "id": "x", "name": "python", "arguments": WHOLE_A}]}), RUNS_A),
    Case("function_call", sse(
        chunk({"function_call": {"name": "python", "arguments": WHOLE_A[:5]}}), chunk({"function_call": {"arguments": WHOLE_A[5:]}}),
        chunk(finish="function_call")), Reads(codes=("a()",), finish="function_call")),
    Case("a call and the same in the text", sse(chunk({"content": '{"name": "python", "arguments": {}}'}), chunk(call_fragment("a()")), CALLS),
         Reads('{"name": "python", "arguments": {}}', codes=("a()",), finish="tool_calls")),
    Case("an object", one_call({"code": "a()"}), RUNS_A),
    Case("encoded twice", one_call(json.dumps(WHOLE_A)), RUNS_A),
    Case("an empty object first", one_call("{}" + WHOLE_A), RUNS_A),
    Case("an empty object last", one_call(WHOLE_A + "{}"), RUNS_A),
    Case("null first", one_call("null" + WHOLE_A), RUNS_A),
    Case("the same object twice", one_call(WHOLE_A + "\n" + WHOLE_A), RUNS_A),
    Case("real line ends and tabs", one_call('{"code": "if x:\n\ta()"}'), Reads(codes=("if x:\n\ta()",), finish="tool_calls")),
    Case("a fence", one_call(arguments("```python\na()\n```")), RUNS_A),
    Case("a fence without a language", one_call(arguments("```\na()\n```\n")), RUNS_A),
    Case("a fence of another kind", one_call(arguments("~~~ py\r\na()\nb()\n~~~")), Reads(codes=("a()\nb()",), finish="tool_calls")),
    Case("a fence that does not enclose all", one_call(arguments("```python\na()\n```\nb()")), Reads(codes=("```python\na()\n```\nb()",), finish="tool_calls")),
    Case("a fence that is not closed", one_call(arguments("```python\na()")), Reads(codes=("```python\na()",), finish="tool_calls")),
    Case("a fence inside code stays", one_call(arguments('s = """\n```\nx\n```\n"""')), Reads(codes=('s = """\n```\nx\n```\n"""',), finish="tool_calls")),
    Case("surrogates in code", one_call(r'{"code": "s = \"\udcaf\""}'), Reads(codes=('s = "\ufffd"',), finish="tool_calls")),
    Case("other arguments beside the code", one_call('{"code": "a()", "timeout": 5}'), RUNS_A),
    Case("a namespace and a leaked marker", one_call(WHOLE_A, name="functions.python<|channel|>commentary"), RUNS_A),
    Case("a counted name", one_call(WHOLE_A, name="functions.python:0"), RUNS_A),
    Case("spaces around the name", one_call(WHOLE_A, name=" python\n"), RUNS_A),
]  # fmt: skip


def _tells(word: str, *, codes: tuple[str, ...] = (), finish: str = "tool_calls") -> Reads:
    return Reads(codes=codes, errors=(word,), finish=finish)


UNRUNNABLE: Final = [
    Case("cut by the limit", one_call(WHOLE_A[:6], finish="length"), _tells("token limit", finish="length")),
    Case("whole, but the limit was hit", one_call(WHOLE_A, finish="length"), _tells("token limit", finish="length")),
    Case("the limit under another name", one_call(WHOLE_A, finish="MAX_TOKENS"), _tells("token limit", finish="MAX_TOKENS")),
    Case("cut without a word", one_call(WHOLE_A[:8]), _tells("cut off")),
    Case("cut, called stop", one_call(WHOLE_A[:-1], finish="stop"), _tells("JSON", finish="stop")),
    Case("a comma too many", one_call('{"code": "a()",}'), _tells("JSON")),
    Case("a python dict", one_call("{'code': 'a()'}"), _tells("JSON")),
    Case("bare code", one_call("a()"), _tells("JSON")),
    Case("a list", one_call([{"code": "a()"}]), _tells("JSON object")),
    Case("a number", one_call(3), _tells("JSON object")),
    Case("nothing", one_call(""), _tells("`code` is missing")),
    Case("null", one_call(None), _tells("`code` is missing")),
    Case("an empty object", one_call("{}"), _tells("`code` is missing")),
    Case("another name", one_call('{"script": "a()"}'), _tells("there was: script")),
    Case("code that is no text", one_call('{"code": ["a()"]}'), _tells("must be a string")),
    Case("code twice", one_call('{"code": "a()", "code": "b()"}'), _tells("same key twice")),
    Case("two objects", one_call(WHOLE_A + WHOLE_B), _tells("2 JSON objects")),
    Case("an object and the beginning of another", one_call(WHOLE_A + WHOLE_B[:5]), _tells("JSON")),
    Case("an unknown tool", one_call(WHOLE_A, name="bash"), _tells("no tool named 'bash'")),
    Case("no name", _pieces(fragment(index=0, id="x", arguments=WHOLE_A)), _tells("names no tool")),
    Case("too deep", one_call("[" * 50_000), _tells("JSON")),
    Case("a good one and a bad one", _pieces(
        fragment(index=0, id="x", name="python", arguments=WHOLE_A), fragment(index=1, id="y", name="python", arguments='{"code": ')),
        _tells("JSON", codes=("a()",))),
]  # fmt: skip

ERRORS: Final = [
    Case("an object", data('{"error": {"message": "busy here", "code": 503}}'), Fails("BROKE_OFF", "busy here")),
    Case("a string", data('{"error": "busy here"}'), Fails("BROKE_OFF", "busy here")),
    Case("a list", data('[{"error": {"message": "no such key", "code": 401}}]'), Fails("REFUSED", "no such key")),
    Case("beside empty choices, done behind it", sse({"choices": [], "error": {"message": "full", "code": 502}}), Fails("BROKE_OFF", "full")),
    Case("after words", sse(chunk({"content": "x"}), {"error": {"message": "full"}}), Fails("BROKE_OFF", "full")),
    Case("after a finish reason", sse(chunk({"content": "x"}), STOP, {"error": {"message": "full"}}), Fails("BROKE_OFF", "full")),
    Case("in a choice", sse({"choices": [{"error": {"message": "full", "code": 502}, "finish_reason": "error"}]}), Fails("BROKE_OFF", "full")),
    Case("as the name of the event", b'event: error\ndata: {"message": "down", "status": 500}\n\n', Fails("BROKE_OFF", "down")),
    Case("as the name, in plain words", b"event: error\ndata: no such model\n\n", Fails("REFUSED", "no such model")),
    Case("as the name of the field", b'error: {"code": 400, "message": "bad ask"}\n\n' + sse(), Fails("REFUSED", "bad ask")),
    Case("without framing", b'{"error": {"code": 400, "message": "bad ask"}}', Fails("REFUSED", "bad ask")),
    Case("without framing, in lines", b'{\n "error": {\n  "code": 400,\n  "message": "bad ask"\n }\n}\n', Fails("REFUSED", "bad ask")),
    Case("without framing, after words", sse(chunk({"content": "x"}), done=False) + b'{"error": {"message": "down"}}\n', Fails("BROKE_OFF", "down")),
    Case("a bare string without framing", b'{"error": "no such endpoint: POST /x"}', Fails("PATH", "no such endpoint")),
    Case("a bare string that passes", b'{"error": "overloaded, try again"}', Fails("BROKE_OFF", "overloaded")),
    Case("object error", data('{"object": "error", "message": "bad", "code": 40001, "type": "invalid_request_error"}'), Fails("REFUSED", "bad")),
    Case("type error", data('{"type": "error", "error": {"type": "overloaded_error", "message": "much"}}'), Fails("BROKE_OFF", "much")),
    Case("object error alone", data('{"object": "error", "message": "wrong key: unauthorized"}'), Fails("REFUSED", "wrong key")),
    Case("type error alone", data('{"type": "error", "message": "wrong key: unauthorized"}'), Fails("REFUSED", "wrong key")),
    Case("message and status", data('{"status": 503, "message": "down"}'), Fails("BROKE_OFF", "down")),
    Case("message and a word", data('{"code": "overloaded", "message": "down"}'), Fails("BROKE_OFF", "down")),
    Case("a code that is fine", data('{"code": 0, "message": "x"}', '{"code": "OK", "message": "x"}', '{"code": 200, "msg": "x"}', '{"status": true, "message": "x"}') + HELLO, Reads("Hello")),
    Case("a message that is no error", data('{"message": "hello", "id": 3}') + HELLO, Reads("Hello")),
    Case("details of something else", data('{"object": "trace", "detail": "x"}') + HELLO, Reads("Hello")),
    Case("a code beside choices", data('{"code": 7, "message": "x", "choices": [{"delta": {"content": "Hi"}}]}') + sse(STOP), Reads("Hi")),
    Case("an error that is a flag", data('{"error": true, "choices": [{"delta": {"content": "Hi"}, "error": 1}]}') + sse(STOP), Reads("Hi")),
    Case("detail", b'{"detail": "Not Found"}', Fails("PATH", "Not Found")),
    Case("message and code", data('{"code": 1113, "msg": "account is in arrears: insufficient balance"}'), Fails("REFUSED", "arrears")),
    Case("a vendor's envelope", data('{"choices": null, "base_resp": {"status_code": 1004, "status_msg": "login refused"}}'), Fails("REFUSED", "login refused")),
    Case("a vendor's envelope, limits", data('{"base_resp": {"status_code": 1002, "status_msg": "slow down"}}'), Fails("LIMITED", "slow down")),
    Case("a vendor's envelope that is none", data('{"base_resp": {"status_code": 0, "status_msg": ""}}') + HELLO, Reads("Hello")),
    Case("an error that is none", data('{"error": null, "choices": []}', '{"error": {}}', '{"error": ""}') + HELLO, Reads("Hello")),
    Case("after half a call", sse(chunk(fragment(index=0, id="x", name="python", arguments=WHOLE_A[:6])), {"error": {"message": "gone", "type": "server_error"}}), Fails("BROKE_OFF", "gone")),
    Case("a prompt too long", data('{"error": {"message": "the prompt exceeds the context window"}}'), Fails("CONTEXT", "context window")),
]  # fmt: skip

FENCED = "Here:\n\n```python\na()\n```\n"
LEAKS: Final = [
    Case("a tag", sse(chunk({"content": '<tool_call>{"name": "python"}</tool_call>'}), STOP), Reads('<tool_call>{"name": "python"}</tool_call>', hint="written as text")),
    Case("a function tag", sse(chunk({"content": "<function=python>a()</function>"}), STOP), Reads("<function=python>a()</function>", hint="written as text")),
    Case("bare json", sse(chunk({"content": '{"name": "python", "arguments": {"code": "a()"}}'}), STOP), Reads('{"name": "python", "arguments": {"code": "a()"}}', hint="written as text")),
    Case("bare json after words", sse(chunk({"content": 'Now {"name": "python", "parameters": {"code": "{}"}} ok'}), STOP), Reads('Now {"name": "python", "parameters": {"code": "{}"}} ok', hint="written as text")),
    Case("bare arguments", sse(chunk({"content": WHOLE_A}), STOP), Reads(WHOLE_A, hint="written as text")),
    Case("a fenced block", sse(chunk({"content": FENCED}), STOP), Reads(FENCED, hint="written as text")),
    Case("special tokens", sse(chunk({"content": "<|tool_calls_section_begin|>functions.python:0"}), STOP), Reads("<|tool_calls_section_begin|>functions.python:0", hint="written as text")),
    Case("a marker in brackets", sse(chunk({"content": '[TOOL_CALLS][{"name": "python"}]'}), STOP), Reads('[TOOL_CALLS][{"name": "python"}]', hint="written as text")),
    Case("in the reasoning", sse(chunk({"reasoning": "<tool_call>x"}), chunk({"content": "Done."}), STOP), Reads("Done.", "<tool_call>x", hint="inside the reasoning")),
    Case("json that is no call", sse(chunk({"content": '{"name": "Ann", "age": 3}'}), STOP), Reads('{"name": "Ann", "age": 3}')),
    Case("words about tools", sse(chunk({"content": "I would call the tool python."}), STOP), Reads("I would call the tool python.")),
    Case("another fence", sse(chunk({"content": "```sh\nls\n```"}), STOP), Reads("```sh\nls\n```")),
]  # fmt: skip

ALL: Final = {
    f"{group}: {case.name}": case
    for group, cases in {
        "framing": FRAMING,
        "choices": CHOICES,
        "words": WORDS,
        "calls": CALLS_CASES,
        "unrunnable": UNRUNNABLE,
        "errors": ERRORS,
        "leaks": LEAKS,
    }.items()
    for case in cases
}
