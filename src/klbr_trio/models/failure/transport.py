"""What HTTP itself can fail of, as a `Failure`.

The table is complete for httpx 0.28: a test walks its exception classes. The most specific entry
counts. `str()` of these exceptions is often empty or names Python's machinery, so it is not shown.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from typing import TYPE_CHECKING, Final

import httpx

from klbr_trio.models.failure.failure import LATER, Failure, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

_SETTINGS: Final = "Check the model's settings."
_TABLE: Final[dict[type[Exception], tuple[Kind, str]]] = {
    httpx.ConnectTimeout: (Kind.UNREACHABLE, "connecting timed out"),
    httpx.ConnectError: (Kind.UNREACHABLE, "no connection could be made"),
    httpx.ProxyError: (Kind.UNREACHABLE, "the proxy refused the connection"),
    httpx.ReadTimeout: (Kind.BROKE_OFF, "reading the answer timed out"),
    httpx.WriteTimeout: (Kind.BROKE_OFF, "sending the request timed out"),
    httpx.PoolTimeout: (Kind.BROKE_OFF, "no free connection"),
    httpx.ReadError: (Kind.BROKE_OFF, "the connection broke while the answer was read"),
    httpx.WriteError: (Kind.BROKE_OFF, "the connection broke while the request was sent"),
    httpx.CloseError: (Kind.BROKE_OFF, "the connection broke at its end"),
    httpx.RemoteProtocolError: (
        Kind.BROKE_OFF,
        "the connection was closed without a whole answer",
    ),
    httpx.DecodingError: (Kind.BROKE_OFF, "the body of the answer can't be decoded"),
    httpx.LocalProtocolError: (Kind.REFUSED, "the request can't be sent as HTTP"),
    httpx.UnsupportedProtocol: (Kind.REFUSED, "the URL's scheme is not http or https"),
    httpx.TooManyRedirects: (Kind.REFUSED, "the provider redirects without end"),
    httpx.InvalidURL: (Kind.REFUSED, "the URL can't be read"),
}


def transport_failure(
    error: httpx.TransportError | httpx.InvalidURL | httpx.RequestError,
) -> Failure:
    """The failure that this exception stands for."""
    kind, words = next(_TABLE[cls] for cls in type(error).__mro__ if cls in _TABLE)
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error)):
        return Failure(
            Kind.REFUSED,
            "the provider's TLS certificate is not trusted",
            advice="Check the URL, the clock and the certificate store.",
            elsewhere=True,
        )
    if kind is Kind.UNREACHABLE:
        detail = next(filter(None, map(_system_words, _causes(error))), "")
        words = f"{words}: {detail}" if detail else words
        advice = "Check that the provider runs and that its URL is right."
        return Failure(kind, words, advice=advice)
    return Failure(kind, words, advice=_SETTINGS if kind is Kind.REFUSED else LATER)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _causes(each)
        error = error.__cause__ or error.__context__


def _system_words(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return "the host's name is not known"
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno).lower()
    return ""
