"""The port's bounds: one value, each field with its unit and its default."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class PortLimits:
    """What the port grants to those who connect.

    Attributes:
        sockets: WebSockets open at once; a handshake beyond is answered 503.
        unfinished_heads: Connections of one address whose head is not complete yet.
            One more cuts the oldest: who is in earnest is done in milliseconds. All
            addresses together have three times as many.
        head_seconds: Time for a whole head, counted from the accept.
        linger_seconds: Time for a refused client to take its reply and hang up.
        message_bytes: Size of one message of a client, in UTF-8; beyond it 1009.
        message_pieces: Fragments and reads that one message may be spread over.
        message_seconds: Time from a message's first byte to its last.
        ping_seconds: Silence after which a client is pinged.
        pong_seconds: Time for a client to be heard after that.
        stall_seconds: A client that takes nothing for so long is cut.
        close_seconds: Time for a goodbye, the client's answer included.
    """

    sockets: int = 1_000
    unfinished_heads: int = 128
    head_seconds: float = 5.0
    linger_seconds: float = 0.5
    message_bytes: int = 1024 * 1024
    message_pieces: int = 8_192
    message_seconds: float = 60.0
    ping_seconds: float = 20.0
    pong_seconds: float = 20.0
    stall_seconds: float = 30.0
    close_seconds: float = 2.0
