"""Who may pass: one pure function from a request's head to what becomes of it.

The order is fixed, and the first check that fails speaks: Host, Origin, path and
method, token, and only then whether the handshake is well formed. All comparisons are
of whole strings. Nothing is exempt from the first two checks, and no peer is trusted
for its address.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from klbr_trio.service.port.reply import Response

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klbr_trio.service.port.head import Head

SUBPROTOCOL: Final = "klbr.v2"
_WITH_TOKEN: Final = "klbr.token."  # noqa: S105
SOCKET_PATH: Final = "/"
_ONLY_WEBSOCKET: Final = (("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13"))
HTTP_PORT: Final = 80  # the one port that a client leaves out of Host
HTTPS_PORT: Final = 443  # … and that with TLS


def _no_empty_token(_policy: object, _field: object, tokens: tuple[str, ...] | None) -> None:
    if tokens is not None and not all(tokens):
        raise ValueError("an empty token would let everybody in")


@attrs.frozen(kw_only=True)
class Policy:
    """What the port lets pass.

    Attributes:
        hosts: The `Host` values served, each exactly as a client writes it.
        origins: The `Origin` values of pages that may speak to the service.
        tokens: Any one of them opens the door; None means that no token is asked for.
        read_tokens: These open it too, to who may look and change nothing.
        open_paths: Paths answered over plain HTTP without a token.
        guarded_paths: Paths answered over plain HTTP to who has a token.
    """

    hosts: frozenset[str]
    origins: frozenset[str] = frozenset()
    tokens: tuple[str, ...] | None = attrs.field(repr=False, validator=_no_empty_token)
    read_tokens: tuple[str, ...] = attrs.field(default=(), repr=False, validator=_no_empty_token)
    open_paths: frozenset[str] = frozenset({"/healthz", "/readyz"})
    guarded_paths: frozenset[str] = frozenset({"/metrics"})

    def still_grants(self, upgrade: Upgrade) -> bool:
        """Whether a socket that was opened by `upgrade` would be opened again, no less free."""
        if self.tokens is None:
            return True
        token = upgrade.token
        if token is None:
            return False
        return _known(token, self.tokens if upgrade.may_write else self.tokens + self.read_tokens)


@attrs.frozen
class Refuse:
    """The request is answered with `response` and goes no further."""

    response: Response
    guess: bool = False
    """Whether it came with a token that is not one of ours."""


@attrs.frozen
class Serve:
    """A plain request for `path` that may be answered."""

    path: str


@attrs.frozen(kw_only=True)
class Upgrade:
    """The handshake of a WebSocket is in order.

    Attributes:
        authorised: False for a wrong token in a subprotocol: the socket is opened
            and closed with 4401 at once, since a page can't read a refused handshake.
        may_write: False for a token that only lets one look.
        token: The token that was offered, if one is asked for.
    """

    key: str
    subprotocol: str | None
    authorised: bool
    may_write: bool = True
    token: str | None = attrs.field(default=None, repr=False, eq=False)


Decision: TypeAlias = Refuse | Serve | Upgrade


def decide(head: Head, policy: Policy) -> Decision:
    """What becomes of a request with this head."""
    refusal = _host(head, policy) or _origin(head, policy) or _route(head, policy)
    if refusal is not None:
        return refusal
    upgrade = head.path == SOCKET_PATH and _wants_websocket(head)
    if head.path in policy.open_paths and not upgrade:
        return _plain(head, policy)
    standing, token = _standing(head, policy)
    if standing is _Standing.MISSING or standing is _Standing.WRONG:
        return _unauthorised(standing)
    if upgrade:
        return _handshake(head, standing, token)
    if standing is _Standing.WRONG_IN_SUBPROTOCOL:
        return _unauthorised(standing)
    return _plain(head, policy)


def loopback_hosts(port: int) -> frozenset[str]:
    """The `Host` values of a service on this machine's loopback at `port`."""
    return frozenset(_at_port(name, port) for name in ("127.0.0.1", "localhost", "[::1]"))


def bound_hosts(
    addresses: Iterable[tuple[str, int]], *, names: Iterable[str] = (), tls: bool = False
) -> frozenset[str]:
    """The `Host` values for the numeric `addresses` that listeners are bound to.

    A wildcard address is nobody's name and adds none of its own; `names` are those by
    which others know this machine.
    """
    hosts: set[str] = set()
    for address, port in addresses:
        found = {"127.0.0.1", "localhost", "[::1]", *names}
        ip = ipaddress.ip_address(address)
        if not ip.is_unspecified:
            found.add(f"[{ip}]" if ip.version == 6 else str(ip))
        hosts |= {_at_port(name, port, HTTPS_PORT if tls else HTTP_PORT) for name in found}
    return frozenset(hosts)


def own_origins(hosts: Iterable[str], *, tls: bool = False) -> frozenset[str]:
    """The origins of pages that the service itself serves under `hosts`."""
    return frozenset(f"{'https' if tls else 'http'}://{host}" for host in hosts)


def _at_port(name: str, port: int, implied: int = HTTP_PORT) -> str:
    return name if port == implied else f"{name}:{port}"


def _refuse(status: int, text: str, *, headers: tuple[tuple[str, str], ...] = ()) -> Refuse:
    return Refuse(Response.line(status, text, headers=headers))


def _host(head: Head, policy: Policy) -> Refuse | None:
    hosts = head.values("host")
    if len(hosts) == 1 and hosts[0] in policy.hosts:
        return None
    return _refuse(421, "The Host header is not an address of this service.")


def _origin(head: Head, policy: Policy) -> Refuse | None:
    origins = head.values("origin")
    if not origins or (len(origins) == 1 and origins[0] in policy.origins):
        return None
    return _refuse(403, "Pages of this origin may not speak to this service.")


def _route(head: Head, policy: Policy) -> Refuse | None:
    if head.path not in {SOCKET_PATH} | policy.open_paths | policy.guarded_paths:
        return _refuse(404, "There is nothing at this path.")
    if head.method != "GET":
        return _refuse(405, "Only GET is answered here.", headers=(("Allow", "GET"),))
    return None


def _plain(head: Head, policy: Policy) -> Decision:
    if head.path not in policy.open_paths | policy.guarded_paths:
        return _refuse(426, "A WebSocket is spoken here.", headers=_ONLY_WEBSOCKET)
    if head.values("content-encoding"):
        return _refuse(415, "A request has no encoded body here.")
    return Serve(head.path)


class _Standing(Enum):
    OWNER = auto()
    READER = auto()
    MISSING = auto()
    WRONG = auto()
    WRONG_IN_SUBPROTOCOL = auto()


def _standing(head: Head, policy: Policy) -> tuple[_Standing, str | None]:
    """Who this is, and by which token."""
    if policy.tokens is None:
        return _Standing.OWNER, None
    headers = head.values("authorization")
    if headers:
        scheme, _, token = headers[0].partition(" ")
        if len(headers) != 1 or scheme.lower() != "bearer":
            return _Standing.WRONG, None
        return _of_token(token, policy) or _Standing.WRONG, token
    offered = head.tokens("sec-websocket-protocol")
    tokens = [name.removeprefix(_WITH_TOKEN) for name in offered if name.startswith(_WITH_TOKEN)]
    if not tokens or SUBPROTOCOL not in offered:
        return _Standing.MISSING, None
    if len(tokens) != 1:
        return _Standing.WRONG_IN_SUBPROTOCOL, None
    return _of_token(tokens[0], policy) or _Standing.WRONG_IN_SUBPROTOCOL, tokens[0]


def _of_token(token: str, policy: Policy) -> _Standing | None:
    # Both are asked, so that the time does not tell one kind from the other.
    owner, reader = _known(token, policy.tokens or ()), _known(token, policy.read_tokens)
    return _Standing.OWNER if owner else _Standing.READER if reader else None


def _known(offered: str, tokens: tuple[str, ...]) -> bool:
    # Every token is compared, so that the time tells nothing about which one is near.
    matches = [hmac.compare_digest(offered.encode(), token.encode()) for token in tokens]
    return any(matches)


def _unauthorised(standing: _Standing) -> Refuse:
    response = Response.line(
        401,
        "A token is needed: Authorization: Bearer followed by the service's token."
        if standing is _Standing.MISSING
        else "The token is not the service's.",
        headers=(("WWW-Authenticate", "Bearer"),),
    )
    return Refuse(response, guess=standing is not _Standing.MISSING)


def _wants_websocket(head: Head) -> bool:
    return any(name.lower() == "websocket" for name in head.tokens("upgrade"))


def _handshake(head: Head, standing: _Standing, token: str | None) -> Decision:
    fault = _handshake_fault(head)
    if fault is not None:
        return _refuse(400, fault)
    if head.values("sec-websocket-version") != ("13",):
        return _refuse(426, "Only version 13 of WebSocket is spoken.", headers=_ONLY_WEBSOCKET)
    subprotocol = SUBPROTOCOL if SUBPROTOCOL in head.tokens("sec-websocket-protocol") else None
    return Upgrade(
        key=head.values("sec-websocket-key")[0],
        subprotocol=subprotocol,
        authorised=standing in {_Standing.OWNER, _Standing.READER},
        may_write=standing is _Standing.OWNER,
        token=token,
    )


def _handshake_fault(head: Head) -> str | None:
    if head.http_version != "1.1":
        return "A WebSocket begins with HTTP/1.1."
    if "upgrade" not in {name.lower() for name in head.tokens("connection")}:
        return "The header Connection: Upgrade is missing."
    if head.values("transfer-encoding") or head.values("content-length") not in {(), ("0",)}:
        return "A handshake has no body."
    if not _is_key(head.values("sec-websocket-key")):
        return "The header Sec-WebSocket-Key must be 16 bytes in base64."
    return None


def _is_key(values: tuple[str, ...]) -> bool:
    if len(values) != 1:
        return False
    try:
        return len(base64.b64decode(values[0], validate=True)) == 16
    except binascii.Error:
        return False
