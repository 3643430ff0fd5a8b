"""The boundary of a client's request: whatever fails in it becomes its answer."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Final, TypeVar

from klbr_trio.errors import Busy, RequestError, StoreBroken, StoreError
from klbr_trio.service.port.connection import ConnectionGone

if TYPE_CHECKING:
    from collections.abc import Awaitable

E = TypeVar("E", bound=BaseException)

_LOG: Final = logging.getLogger("klbr_trio.service")


class InternalError(RequestError):
    """A fault of the service; the client gets an id to look for in the log, no more."""

    code = "internal"


async def refusal_of(serving: Awaitable[None]) -> RequestError | None:
    """The request is served; what it is refused with if that fails.

    Raises:
        ConnectionGone: The client has gone, and nobody is left to be answered.
        StoreBroken: The store's file is corrupt, which ends the service.
    """
    refusal: RequestError | None = None
    try:
        await serving
    except* (ConnectionGone, StoreBroken):
        raise
    except* RequestError as group:
        refusal = first_of(group)
    except* StoreError as group:
        refusal = Busy(str(first_of(group)))
    except* Exception:  # noqa: BLE001 - the boundary of a client's request
        fault = secrets.token_hex(4)
        _LOG.exception("internal error %s", fault)
        refusal = InternalError(f"internal error {fault}; the service's log has it")
    return refusal


def first_of(group: BaseExceptionGroup[E]) -> E:
    """The first error of a group, however deep it lies."""
    found = group.exceptions[0]
    return first_of(found) if isinstance(found, BaseExceptionGroup) else found
