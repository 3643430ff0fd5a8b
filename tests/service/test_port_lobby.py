"""The lobby: who waits too long or crowds others goes, and nobody else."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from klbr_trio.service.port.lobby import Lobby
from klbr_trio.service.port.peer import counted_as

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


async def wait(lobby: Lobby, address: str, ended: list[str], name: str) -> None:
    with lobby.wait_in(address) as place:
        await trio.sleep(3600)
    if place.cancelled_caught:
        ended.append(name)


@contextlib.asynccontextmanager
async def crowd(lobby: Lobby, *addresses: str) -> AsyncGenerator[list[str]]:
    """One that waits for each address, in this order, named by its place in it."""
    ended: list[str] = []
    async with trio.open_nursery() as nursery:
        for number, address in enumerate(addresses):
            nursery.start_soon(wait, lobby, address, ended, f"{address}{number}")
            await trio.testing.wait_all_tasks_blocked()
        yield ended
        nursery.cancel_scope.cancel()


async def test_one_too_many_cuts_the_oldest_of_its_address() -> None:
    lobby = Lobby(places=2, all_places=10, seconds=60)
    async with crowd(lobby, "b", "a", "a", "a", "c", "a") as ended:
        assert ended == ["a1", "a2"]
        assert lobby.waiting == 4
    assert lobby.waiting == 0


async def test_many_addresses_together_cut_the_oldest_of_all() -> None:
    lobby = Lobby(places=2, all_places=3, seconds=60)
    async with crowd(lobby, "a", "b", "c", "d", "e") as ended:
        assert ended == ["a0", "b1"]
        assert lobby.waiting == 3


async def test_who_has_left_takes_no_place(autojump_clock: trio.testing.MockClock) -> None:
    assert autojump_clock.autojump_threshold == 0
    lobby = Lobby(places=1, all_places=1, seconds=5)
    for address in ("a", "a", "b"):
        with lobby.wait_in(address) as place:
            assert lobby.waiting == 1
        assert not place.cancelled_caught
        assert lobby.waiting == 0
    with lobby.wait_in("a") as place:
        await trio.sleep(60)
    assert place.cancelled_caught
    assert trio.current_time() == pytest.approx(5)


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_a_host_counts_as_one_whatever_its_addresses(host: str, counted: str) -> None:
    assert counted_as(host) == counted
