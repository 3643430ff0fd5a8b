"""Conversations that outlive a connection, and how long they wait."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
import trio

from klbr_trio.cli.exits import Exit, Problem
from klbr_trio.cli.persist import once, persist
from klbr_trio.cli.settings import resolve
from klbr_trio.wire.client import ListSessions

if TYPE_CHECKING:
    from e2e_house import House

    from klbr_trio.cli.link import Link


async def test_a_service_that_stays_away_is_waited_for_and_then_given_up(
    house: House, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = resolve({"state": str(house.state)}, {})
    await trio.to_thread.run_sync(house.start)
    talks = 0

    async def talk(link: Link) -> None:
        nonlocal talks
        talks += 1
        assert (await link.ask(ListSessions()))["sessions"] == []
        house.signal(signal.SIGKILL)
        await link.receive()

    with pytest.raises(Problem) as caught:
        await persist(settings, talk, patience_s=0.5)
    assert caught.value.code is Exit.UNREACHABLE
    assert "has not come back" in str(caught.value)
    assert talks == 1
    assert "the connection is lost" in capfd.readouterr().err


async def test_once_is_once(house: House) -> None:
    settings = resolve({"state": str(house.state)}, {})
    await trio.to_thread.run_sync(house.start)

    async def talk(link: Link) -> None:
        house.signal(signal.SIGKILL)
        await link.receive()

    with pytest.raises(Problem) as caught:
        await once(settings, talk)
    assert caught.value.code is Exit.UNREACHABLE


async def test_a_service_that_ends_says_that_it_does(house: House) -> None:
    settings = resolve({"state": str(house.state)}, {})
    await trio.to_thread.run_sync(house.start)

    async def talk(link: Link) -> None:
        house.signal(signal.SIGTERM)
        await link.receive()

    with pytest.raises(Problem) as caught:
        await once(settings, talk)
    assert caught.value.code is Exit.TRY_AGAIN
    assert "stopping" in str(caught.value)
