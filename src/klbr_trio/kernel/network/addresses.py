"""Which hosts and addresses a kernel may reach: public ones that the settings allow."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

PORTS: Final = (80, 443)

# What carries an IPv4 address inside: the network behind it decides where that leads.
_TUNNELS: Final = tuple(
    ipaddress.IPv6Network(text)
    for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::ffff:0:0/96")
)


def is_public(address: Address) -> bool:
    """Whether `address` is somebody's on the internet, and not this machine's own."""
    if isinstance(address, ipaddress.IPv6Address) and any(address in net for net in _TUNNELS):
        return False
    special = address.is_multicast or address.is_reserved or address.is_unspecified
    return address.is_global and not special and not _is_own(address)


def _is_own(address: Address) -> bool:
    """Whether an interface of this machine has it: only such an address can be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def is_allowed(host: str, domains: Sequence[str]) -> bool:
    """Whether `host` is one of the names, or below one; without names every host is."""
    name = host.rstrip(".").lower()
    return not domains or any(
        name == domain or name.endswith(f".{domain}")
        for domain in (one.strip(".").lower() for one in domains)
    )


def literal(host: str) -> Address | None:
    """The address that `host` is written as, in the one way that everybody reads alike."""
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
