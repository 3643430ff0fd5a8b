"""The exit codes, and which error ends with which of them."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from klbr_trio import errors

if TYPE_CHECKING:
    from collections.abc import Mapping


class Exit(enum.IntEnum):
    """How a command ends."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    TURN_FAILED = 5
    UNAUTHORISED = 6
    UNREACHABLE = 7
    CHECK_FAILED = 8
    TRY_AGAIN = 75  # draining, busy, locked
    CONFIGURATION = 78
    INTERRUPTED = 130


class Problem(Exception):
    """A command ends here; the message says what is wrong and what to do."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


OF_WIRE_CODE: Final[Mapping[str, Exit]] = {
    "bad_request": Exit.USAGE,
    "invalid_session_id": Exit.USAGE,
    "too_large": Exit.USAGE,
    "unknown_session": Exit.NOT_FOUND,
    "conflict": Exit.CONFLICT,
    "unauthorized": Exit.UNAUTHORISED,
    "busy": Exit.TRY_AGAIN,
    "no_model_configured": Exit.CONFIGURATION,
}
"""What an error's code on the wire ends a command with; any other fails it."""

_OF_ERROR: Final[tuple[tuple[type[errors.KlbrError], Exit], ...]] = (
    (errors.StoreLocked, Exit.TRY_AGAIN),
    (errors.StoreUnavailable, Exit.TRY_AGAIN),
    (errors.StoreTooNew, Exit.CONFIGURATION),
    (errors.StoreForeign, Exit.CONFIGURATION),
    (errors.ConfigError, Exit.CONFIGURATION),
    (errors.ReleaseError, Exit.CONFIGURATION),
    (errors.InvalidSessionId, Exit.USAGE),
    (errors.KlbrError, Exit.FAILED),
)


def problem_of(error: BaseException) -> Problem | None:
    """What a command says about `error`; None for a bug of ours."""
    if isinstance(error, BaseExceptionGroup):
        return _problem_of_group(error)
    if isinstance(error, Problem):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Problem(Exit.INTERRUPTED, "interrupted")
    for kind, code in _OF_ERROR:
        if isinstance(error, kind):
            return Problem(code, str(error))
    return None


def _problem_of_group(group: BaseExceptionGroup[BaseException]) -> Problem | None:
    """The first that says something; a bug among them is a bug."""
    found = [problem_of(error) for error in group.exceptions]
    known = [problem for problem in found if problem is not None]
    return known[0] if len(known) == len(found) else None


def bug(error: BaseException) -> Problem:
    """What a command says about an error that nobody foresaw."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = ""
    if trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "?")
        where = f" at {name}:{trace.tb_lineno}"
    what = f"{type(error).__name__}: {error}".strip()
    return Problem(Exit.FAILED, f"internal error{where}: {what[:500]}; please report it")
