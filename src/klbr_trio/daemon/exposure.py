"""What a service shows beyond this machine: the conditions, and the words for it."""

from __future__ import annotations

import ipaddress
import os
import ssl
import stat
from typing import TYPE_CHECKING

from klbr_trio.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from klbr_trio.daemon.settings import ServiceSettings


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the numeric address `host`; a name is nobody's word."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(settings: ServiceSettings) -> None:
    """Nothing, if the service may listen where it is to listen.

    Raises:
        ConfigError: Others could reach it, and it would speak unencrypted or to anybody.
    """
    if is_loopback(settings.host):
        return
    if settings.no_auth:
        raise ConfigError(
            f"listen: {settings.host} is not a loopback address, and with no_auth everybody who "
            "can reach it could run code here; listen on 127.0.0.1, or leave the token on"
        )
    if settings.tls_cert is None:
        raise ConfigError(
            f"listen: {settings.host} is not a loopback address, and the service would speak "
            "unencrypted to everybody who can reach it; give it --tls-cert and --tls-key, or "
            "listen on 127.0.0.1 and come in over an SSH tunnel"
        )


def exposure(settings: ServiceSettings) -> str | None:
    """What others can do with the service, in words; None if they can't reach it."""
    if is_loopback(settings.host):
        return None
    return (
        f"EXPOSED on {settings.host}: from other machines, whoever has the token can read every "
        "session, drive every agent and so run code here; a read-only token reads every session"
    )


def tls_context(settings: ServiceSettings) -> ssl.SSLContext | None:
    """The certificate and key of the settings, ready to serve; None without them.

    Raises:
        ConfigError: A file is missing, unreadable, open to others, or not what it should be.
    """
    cert, key = settings.tls_cert, settings.tls_key
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("tls: a certificate and a key go together: --tls-cert and --tls-key")
    _check_key(key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # A key with a passphrase would make OpenSSL ask for it on the terminal.
        context.load_cert_chain(cert, key, password=lambda: b"")
    except (OSError, ValueError) as exc:
        raise ConfigError(f"tls: {cert} and {key} can't be used: {exc}") from exc
    return context


def _check_key(path: Path) -> None:
    try:
        found = path.stat()
    except OSError as exc:
        raise ConfigError(f"tls_key: {path}: can't be read: {exc.strerror}") from exc
    if stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid not in {0, os.geteuid()}:
        raise ConfigError(
            f"tls_key: {path}: is open to other users, who may know it by now; run chmod 600 on "
            "it if they can't have read it"
        )
