"""Who is at the other end of an accepted connection, as far as the kernel knows."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct

import attrs
import trio
from typing_extensions import override

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


@attrs.frozen(kw_only=True)
class Peer:
    """One end of a connection.

    Attributes:
        name: For logs.
        address: What is counted together: a network address, or this machine's user.
        extra_hosts: `Host` values that only make sense on this kind of connection.
    """

    name: str
    address: str
    extra_hosts: frozenset[str] = frozenset()

    @override
    def __str__(self) -> str:
        return self.name


def peer_of(stream: trio.SocketStream) -> Peer | None:
    """The peer of `stream`; None for a process of another user on a unix socket.

    Raises:
        trio.BrokenResourceError: It has gone already.
    """
    if stream.socket.family != socket.AF_UNIX:
        try:
            host, port = stream.socket.getpeername()[:2]
        except OSError as exc:
            raise trio.BrokenResourceError("the peer has gone") from exc
        return Peer(name=f"{host}:{port}", address=counted_as(host))
    raw = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    assert isinstance(raw, bytes)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.geteuid():
        return None
    return Peer(name=f"unix:{pid}", address="unix", extra_hosts=frozenset({"localhost"}))


def counted_as(host: str) -> str:
    """What a numeric address is counted with: itself, or the network that one host has in IPv6."""
    ip = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, 64), strict=False))
