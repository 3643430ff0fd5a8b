"""TLS before the port: a relay between an encrypted connection and a plain one of ours.

Everything that the port promises about frames, stalls and force is about a plain socket.
So TLS ends here: the relay's other end is one half of a socket pair, which the port serves
like any accepted connection. The relay holds no more than a read in each direction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from klbr_trio.service.port.peer import Peer, peer_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from klbr_trio.service.port.accept import Port

RELAY_BYTES: Final = 65_536

HandOver: TypeAlias = Callable[[trio.SocketStream, Peer, trio.Event], None]
_Encrypted: TypeAlias = "trio.SSLStream[trio.SocketStream]"
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)

logger: Final = logging.getLogger("klbr_trio.service")


async def serve_tls(
    listeners: Sequence[trio.SocketListener],
    context: ssl.SSLContext,
    *,
    relay_nursery: trio.Nursery,
    port: Port,
    hand_over: HandOver,
    task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Decrypt what the listeners accept and hand it over, until cancelled.

    Args:
        listeners: This takes responsibility for closing them.
        context: The certificate and what is spoken.
        relay_nursery: One task a connection is spawned here. It has to outlive those who
            serve what is handed over, or their last words are not sent.
        port: Bounds how many connections may be unfinished, and for how long.
        hand_over: Takes the plain half of a connection, who is at its end, and what it sets
            when it is done with that half and has closed it; it does not wait.
        task_status: Started once connections are accepted.
    """
    await trio.serve_listeners(
        partial(_relay, port, hand_over),
        [trio.SSLListener(listener, context, https_compatible=True) for listener in listeners],
        handler_nursery=relay_nursery,
        task_status=task_status,
    )


async def _relay(port: Port, hand_over: HandOver, encrypted: _Encrypted) -> None:
    """One connection, to its end. Only a cancel comes out of here."""
    if port.connections + port.lobby.waiting >= port.most_connections:
        return
    try:
        await _open_and_pump(port, hand_over, encrypted)
    except* _GONE:
        logger.debug("an encrypted connection has gone")
    except* Exception:
        logger.exception("an encrypted connection failed")


async def _open_and_pump(port: Port, hand_over: HandOver, encrypted: _Encrypted) -> None:
    peer = peer_of(encrypted.transport_stream)
    assert peer is not None  # only a unix socket has peers that are turned away
    with port.lobby.wait_in(peer.address) as place:
        await encrypted.do_handshake()
    if place.cancelled_caught:
        return
    ours, theirs = trio.socket.socketpair()
    served, arrived, sent = trio.Event(), trio.Event(), trio.Event()
    hand_over(trio.SocketStream(theirs), peer, served)
    plain = trio.SocketStream(ours)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_bring_in, encrypted, plain, arrived)
            nursery.start_soon(_carry_out, plain, encrypted, sent)
            await served.wait()
            # Time for our last words; who is still sending would lose them by a close.
            with trio.move_on_after(port.limits.linger_seconds):
                await sent.wait()
                await arrived.wait()
            nursery.cancel_scope.cancel()
        with trio.move_on_after(port.limits.linger_seconds):
            await encrypted.aclose()
    finally:
        plain.socket.close()


async def _bring_in(encrypted: _Encrypted, plain: trio.SocketStream, over: trio.Event) -> None:
    """What the client sends; its end is passed on, however it ends."""
    try:
        while data := await encrypted.receive_some(RELAY_BYTES):
            await plain.send_all(data)
        await plain.send_eof()
    except _GONE:
        # Neither half is of use any more: who serves the plain one has to notice.
        plain.socket.close()
    finally:
        over.set()


async def _carry_out(plain: trio.SocketStream, encrypted: _Encrypted, over: trio.Event) -> None:
    """What is sent to the client, until whoever serves it has no more to say."""
    try:
        while data := await plain.receive_some(RELAY_BYTES):
            await encrypted.send_all(data)
    except _GONE:
        plain.socket.close()
    finally:
        over.set()
