"""The provider's address: what a base URL that people write becomes.

People give a base with `/v1` or without, with slashes at its end or doubled, sometimes the whole
path of the endpoint. A base without a version segment is tried with `/v1` first; if there is
nothing at that path, as it was given.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from klbr_trio.errors import ConfigError

ENDPOINT: Final = "/chat/completions"
_VERSION: Final = re.compile(r"/v\d+[a-z0-9]*(?=/|$)")
_SLASHES: Final = re.compile(r"/{2,}")
_DOUBLED: Final = re.compile(r"(/v\d+)\1$")


def api_base(url: str) -> SplitResult:
    """The base as it was meant: no slash at its end, none doubled, no endpoint, one version.

    Raises:
        ConfigError: It is not an http or https URL with a host.
    """
    try:
        parts = urlsplit(url.strip())
        port_is_readable = parts.port is None or parts.port >= 0
    except ValueError as error:
        raise ConfigError(f"the model's url can't be read: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_readable:
        raise ConfigError(
            f"the model's url {public_url(url)!r} is not of the form http(s)://HOST[:PORT]/PATH"
        )
    path = _SLASHES.sub("/", parts.path).rstrip("/")
    path = path.removesuffix(ENDPOINT)
    return parts._replace(path=_DOUBLED.sub(r"\1", path), fragment="")


def api_bases(url: str) -> tuple[str, ...]:
    """The bases to try, the likeliest first; one if the path names a version."""
    base = api_base(url)
    if _VERSION.search(base.path):
        return (urlunsplit(base),)
    return urlunsplit(base._replace(path=base.path + "/v1")), urlunsplit(base)


def other_forms(url: str) -> tuple[str, ...]:
    """What `api_bases` would not try, and a person may have meant: without the `/v1` that is given."""
    base = api_base(url)
    if not base.path.endswith("/v1"):
        return ()
    return (urlunsplit(base._replace(path=base.path.removesuffix("/v1"))),)


def endpoint(base: str, path: str = ENDPOINT) -> str:
    """The URL of `path` below `base`; a query of the base stays a query."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=parts.path + path))


def public_url(url: str) -> str:
    """The URL as it may be shown: without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(unreadable)"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
