"""Conversations that outlive a connection: the service may restart in the middle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from klbr_trio.cli.exits import Exit, Problem
from klbr_trio.cli.link import Link, LinkLost, open_link
from klbr_trio.cli.output import tell
from klbr_trio.cli.place import find_places

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from klbr_trio.cli.settings import Settings

T = TypeVar("T")

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 2.0
_PASSING: Final = (Exit.UNREACHABLE, Exit.TRY_AGAIN)


async def once(settings: Settings, talk: Callable[[Link], Awaitable[T]]) -> T:
    """What `talk` comes to over one connection.

    Raises:
        Problem: The service can't be reached, refuses, or is lost.
    """
    try:
        async with open_link(find_places(settings)) as link:
            return await talk(link)
    except LinkLost as lost:
        raise lost.problem() from None


async def persist(
    settings: Settings, talk: Callable[[Link], Awaitable[T]], *, patience_s: float = math.inf
) -> T:
    """What `talk` comes to; it is called again over a new connection when one is lost.

    Args:
        settings: Where the service is.
        talk: Must be able to go on from where it was.
        patience_s: How long a lost service is waited for.

    Raises:
        Problem: The service can't be reached the first time, refuses, or stays away.
    """
    lost_at: float | None = None
    pause = _FIRST_PAUSE_S
    while True:
        try:
            async with open_link(find_places(settings)) as link:
                if lost_at is not None:
                    tell("the service is back")
                lost_at, pause = None, _FIRST_PAUSE_S
                return await talk(link)
        except LinkLost as lost:
            problem = lost.problem()
            if problem.code not in _PASSING:
                raise problem from None
            tell("the connection is lost; waiting for the service")
            lost_at = trio.current_time()
        except Problem as problem:
            if lost_at is None or problem.code not in _PASSING:
                raise
            if trio.current_time() - lost_at > patience_s:
                raise Problem(
                    Exit.UNREACHABLE, f"the service has not come back in {patience_s:.0f} s"
                ) from problem
        await trio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
