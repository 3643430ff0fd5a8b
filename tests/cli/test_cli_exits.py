from __future__ import annotations

import inspect

import pytest

from klbr_trio import errors
from klbr_trio.cli.exits import OF_WIRE_CODE, Exit, bug, problem_of
from klbr_trio.errors import ConfigError, KlbrError, StoreLocked


def test_the_codes_are_those_that_are_promised() -> None:
    assert {code.name: int(code) for code in Exit} == {
        "DONE": 0,
        "FAILED": 1,
        "USAGE": 2,
        "NOT_FOUND": 3,
        "CONFLICT": 4,
        "TURN_FAILED": 5,
        "UNAUTHORISED": 6,
        "UNREACHABLE": 7,
        "CHECK_FAILED": 8,
        "TRY_AGAIN": 75,
        "CONFIGURATION": 78,
        "INTERRUPTED": 130,
    }


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, KlbrError)
    ],
)
def test_every_error_of_ours_ends_a_command_with_its_own_words(kind: type[KlbrError]) -> None:
    problem = problem_of(kind("what is wrong; what to do"))
    assert problem is not None
    assert str(problem) == "what is wrong; what to do"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreLocked("x"), Exit.TRY_AGAIN),
        (errors.StoreUnavailable("x"), Exit.TRY_AGAIN),
        (errors.StoreForeign("x"), Exit.CONFIGURATION),
        (errors.StoreTooNew("x"), Exit.CONFIGURATION),
        (errors.StoreBroken("x"), Exit.FAILED),
        (ConfigError("x"), Exit.CONFIGURATION),
        (errors.ReleaseRefused("x"), Exit.CONFIGURATION),
        (errors.InvalidSessionId("x"), Exit.USAGE),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (BaseExceptionGroup("", [BaseExceptionGroup("", [KeyboardInterrupt()])]), Exit.INTERRUPTED),
        (ExceptionGroup("", [StoreLocked("x"), ConfigError("y")]), Exit.TRY_AGAIN),
    ],
)
def test_errors_have_their_codes(error: BaseException, code: Exit) -> None:
    problem = problem_of(error)
    assert problem is not None
    assert problem.code is code


def test_a_bug_is_no_problem_and_is_told_on_one_line() -> None:
    assert problem_of(ValueError("x")) is None
    assert problem_of(ExceptionGroup("", [ConfigError("x"), ValueError("y")])) is None
    with pytest.raises(KeyError) as caught:
        dict[str, str]()["missing"]
    told = bug(ExceptionGroup("", [caught.value]))
    assert told.code is Exit.FAILED
    assert "KeyError: 'missing'" in str(told)
    assert __name__ in str(told)


def test_errors_on_the_wire_have_their_codes() -> None:
    assert OF_WIRE_CODE["no_model_configured"] is Exit.CONFIGURATION
    assert OF_WIRE_CODE["busy"] is Exit.TRY_AGAIN
    codes = {
        kind.code
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.RequestError)
    }
    # A stopped session and a draining service are told apart by asking.
    assert set(OF_WIRE_CODE) >= codes - {"admission_rejected"}
