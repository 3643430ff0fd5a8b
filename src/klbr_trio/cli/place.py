"""Where the service is, and whether it may be given the token.

The state folder's own socket comes first. Over TCP the stored token goes out only while
the state folder's lock is held by the process that announced the address; nobody else
who may have taken the port gets it.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

import attrs

from klbr_trio.cli.exits import Exit, Problem
from klbr_trio.daemon.announcement import read_announcement
from klbr_trio.daemon.folder import StateFolder
from klbr_trio.daemon.token import read_token
from klbr_trio.errors import ConfigError
from klbr_trio.store.lock import holder

if TYPE_CHECKING:
    from klbr_trio.cli.settings import Settings

_PORTS: Final = {"http": 80, "ws": 80, "https": 443, "wss": 443}


@attrs.frozen
class UnixPlace:
    """A socket in a state folder."""

    path: Path
    token: str | None = attrs.field(repr=False)


@attrs.frozen
class TcpPlace:
    """An address of a network."""

    host: str
    port: int
    tls: bool
    token: str | None = attrs.field(repr=False)

    @property
    def name(self) -> str:
        """The address as a `Host` header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


Place: TypeAlias = UnixPlace | TcpPlace


def find_places(settings: Settings) -> list[Place]:
    """The ways to the service, the best first.

    Raises:
        Problem: No service runs, or it is not ready.
        ConfigError: The settings or files don't allow to speak to it.
    """
    url = settings.text("url")
    if url is not None:
        token_file = settings.path("token_file")
        return [named_place(url, None if token_file is None else _token(token_file))]
    return _places_of(StateFolder(settings.state.absolute()))


def named_place(url: str, token: str | None) -> TcpPlace:
    """The place that a URL names.

    Raises:
        ConfigError: It is no URL of a service, or the token would cross a network in clear.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise ConfigError(f"--url: {url!r} can't be read: {exc}") from exc
    if parts.scheme not in _PORTS or not host or parts.path not in ("", "/") or parts.query:
        raise ConfigError(f"--url: {url!r} is not of the form http://HOST:PORT")
    if parts.username is not None:
        raise ConfigError("--url: a service's URL has no user; name the token with --token-file")
    tls = parts.scheme in ("https", "wss")
    if token is not None and not tls and not _is_loopback(host):
        raise ConfigError(
            f"--url: the token would go to {host} unencrypted; use https, or an SSH tunnel and "
            "a loopback address"
        )
    return TcpPlace(host, port or _PORTS[parts.scheme], tls, token)


def _is_loopback(host: str) -> bool:
    """By the whole name: what merely begins like a loopback address may be anybody's."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _places_of(folder: StateFolder) -> list[Place]:
    owner = holder(folder.lock) if folder.lock.exists() else None
    if owner is None:
        raise Problem(
            Exit.UNREACHABLE, f"no service runs on {folder.path}; start one with: klbr serve"
        )
    announcement = read_announcement(folder.announcement)
    # A killed service leaves its announcement behind for the next one to replace.
    if announcement is None or announcement.pid != owner.pid:
        raise Problem(
            Exit.TRY_AGAIN,
            f"the service on {folder.path} (process {owner.pid or 'unknown'}) is starting or "
            "stopping; try again",
        )
    try:
        token = read_token(folder.token)
    except FileNotFoundError:
        token = None
    return [UnixPlace(folder.socket, token), named_place(announcement.url, token)]


def _token(path: Path) -> str:
    try:
        return read_token(path)
    except FileNotFoundError as exc:
        raise ConfigError(f"--token-file: there is no {path}") from exc
