from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from klbr_trio.service.port.head import HEAD_BYTES, HEADERS, Head, HeadReader, HeadRefused

PLAIN = (
    b"GET /some/path?token=secret HTTP/1.1\r\n"
    b"Host: localhost:8765\r\n"
    b"X-Many: a, b\r\nx-many: c\r\n\r\n"
)


def read(data: bytes) -> Head | None:
    """Feed everything, in pieces as large as the reader takes."""
    reader, head = HeadReader(), None
    while data and head is None:
        piece, data = data[: reader.room], data[reader.room :]
        head = reader.feed(piece)
    return head


def request(*lines: str, first: str = "GET / HTTP/1.1") -> bytes:
    return "\r\n".join([first, *lines, "", ""]).encode("latin-1")


def test_a_head_has_its_parts_and_no_query() -> None:
    head = read(PLAIN)
    assert head == Head(
        method="GET",
        path="/some/path",
        http_version="1.1",
        headers=(("host", "localhost:8765"), ("x-many", "a, b"), ("x-many", "c")),
    )
    assert head.values("x-many") == ("a, b", "c")
    assert head.tokens("x-many") == ("a", "b", "c")
    assert "secret" not in repr(head)


@given(cuts=st.lists(st.integers(1, len(PLAIN)), max_size=6), behind=st.binary(max_size=40))
def test_how_the_bytes_are_cut_makes_no_difference(cuts: list[int], behind: bytes) -> None:
    reader, head, data = HeadReader(), None, PLAIN + behind
    edges = [0, *sorted({*cuts, len(data)})]
    fed = 0
    for start, end in itertools.pairwise(edges):
        if head is None:
            head = reader.feed(data[start:end])
            fed = end
    assert head == read(PLAIN)
    assert reader.rest == data[len(PLAIN) : fed]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", id="tls"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="http2 preface"),
        pytest.param(request("Host: a", first="GET / HTTP/2.0"), id="another version"),
        pytest.param(request("Host: a", first="GET http://a/ HTTP/1.1"), id="absolute form"),
        pytest.param(request("Host: a", first="OPTIONS * HTTP/1.1"), id="asterisk form"),
        pytest.param(request("Host: a", first="CONNECT a:1 HTTP/1.1"), id="authority form"),
        pytest.param(request(), id="no host"),
        pytest.param(request("Host: a", "Host: a"), id="two hosts"),
        pytest.param(
            request("Host: a", "Sec-WebSocket-Key: a", "sec-websocket-key: a"), id="two keys"
        ),
        pytest.param(request("Host: a", "Upgrade: websocket", "Upgrade: h2c"), id="two upgrades"),
        pytest.param(request("Host: a\xff"), id="0xff in host"),
        pytest.param(request("Host: a", "Connection: \xff"), id="0xff in connection"),
        pytest.param(request("Host: a", "Sec-WebSocket-Protocol: \xe9"), id="latin-1"),
        pytest.param(request("Host: a", "X: a\x7fb"), id="delete"),
        pytest.param(request("Host: a", "X: a\x1bb"), id="escape"),
        pytest.param(request("Host: a", "X: a\0b"), id="nul"),
        pytest.param(request("Host : a"), id="space in a name"),
        pytest.param(request("Host: a", "Content-Length: x"), id="bad length"),
        pytest.param(
            request("Host: a", *(f"X-{n}: y" for n in range(HEADERS))), id="too many headers"
        ),
        pytest.param(request("Host: a", f"X: {'y' * HEAD_BYTES}"), id="too long"),
        pytest.param(b"G" * HEAD_BYTES, id="endless first line"),
        pytest.param(b"\r\n" * HEAD_BYTES, id="only empty lines"),
    ],
)
def test_what_is_refused(data: bytes) -> None:
    with pytest.raises(HeadRefused):
        read(data)


def test_as_many_headers_as_allowed_are_read() -> None:
    head = read(request("Host: a", *(f"X-{n}: y" for n in range(HEADERS - 1))))
    assert head is not None
    assert len(head.headers) == HEADERS


@given(st.binary(min_size=1, max_size=300))
def test_any_bytes_are_a_head_or_refused_or_incomplete(data: bytes) -> None:
    try:
        head = read(data + b"\r\n\r\n")
    except HeadRefused as refusal:
        text = str(refusal)
        assert text.isascii()
        assert "\n" not in text
    else:
        assert head is None or head.path.startswith("/")
