"""Tokens of a running service: replaced, added, told apart, and written down nowhere else."""

from __future__ import annotations

import signal
import stat
from typing import TYPE_CHECKING

import pytest
import trio
import trio_websocket
from e2e_house import CEILING_S, DEMO, House

if TYPE_CHECKING:
    from pathlib import Path


def url(house: House) -> str:
    return str(house.service["url"]).replace("http", "ws")


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {token}".encode())]


async def is_let_in(house: House, token: str) -> bool:
    status = 101
    try:
        async with trio_websocket.open_websocket_url(url(house), extra_headers=bearer(token)):
            pass
    except trio_websocket.ConnectionRejected as exc:
        status = exc.status_code
    assert status in {101, 401}
    return status == 101


async def rotated(house: House, *options: str) -> str:
    done = await trio.to_thread.run_sync(house.klbr, "token", "rotate", *options)
    assert done.code == 0, done.err
    return str(done.out.strip())


async def test_rotation_ends_the_old_token_and_its_connections(house: House) -> None:
    house.start(*DEMO)
    old = house.token
    async with trio_websocket.open_websocket_url(url(house), extra_headers=bearer(old)) as open_one:
        await open_one.send_message('{"type":"ping"}')
        assert await open_one.get_message() == '{"type":"pong"}'
        new = await rotated(house)
        with trio.fail_after(CEILING_S), pytest.raises(trio_websocket.ConnectionClosed) as closed:
            await open_one.get_message()
        assert closed.value.reason is not None
        assert closed.value.reason.code == 4401
    assert new == house.token != old
    assert not await is_let_in(house, old)
    assert await is_let_in(house, new)
    assert house.klbr("send", "s", "what is 1+1").out == "1+1 = 2\n"
    house.stop()
    house.start(*DEMO)
    assert not await is_let_in(house, old)
    assert await is_let_in(house, new)
    assert new not in house.log.read_text()
    assert old not in house.log.read_text()


async def test_a_read_only_token_looks_and_no_more(house: House, tmp_path: Path) -> None:
    house.start(*DEMO)
    done = house.klbr("token", "new", "--read-only", "--json")
    assert done.json["rights"] == "read"
    file = tmp_path / "reader"
    file.write_text(done.json["token"])
    file.chmod(0o600)
    by_reader = ("--url", house.service["url"], "--token-file", str(file))
    assert house.klbr("send", "s", "what is 2+3").out == "2+3 = 5\n"
    assert "2+3 = 5" in house.klbr("history", "s", *by_reader).out
    refused = house.klbr("stop", "s", *by_reader)
    assert refused.code == 6
    assert "read-only" in refused.only_line
    assert "session.stopped" not in house.kinds("s")
    reading = house.state / "read-tokens"
    assert stat.S_IMODE(reading.stat().st_mode) == 0o600
    assert reading.read_text().split() == [done.json["token"]]
    alone = await rotated(house, "--read-only")
    assert reading.read_text().split() == [alone]
    assert not await is_let_in(house, done.json["token"])
    assert await is_let_in(house, alone)
    assert await is_let_in(house, house.token)


def test_tokens_are_made_without_a_service_too(house: House) -> None:
    first = house.klbr("token", "rotate").out.strip()
    reader = house.klbr("token", "new", "--read-only").out.strip()
    assert stat.S_IMODE(house.state.stat().st_mode) == 0o700
    assert stat.S_IMODE((house.state / "token").stat().st_mode) == 0o600
    assert house.klbr("token", "new").code == 2
    house.start(*DEMO)
    assert house.token == first
    assert (house.state / "read-tokens").read_text().split() == [reader]


async def test_files_that_can_not_be_read_change_nothing(house: House) -> None:
    house.start(*DEMO)
    old = house.token
    (house.state / "token").write_text("short\n")
    house.signal(signal.SIGUSR1)
    await _told(house, "the tokens stay as they were")
    assert await is_let_in(house, old)
    (house.state / "token").unlink()
    (house.state / "token").symlink_to(house.state / "klbr.sqlite")
    house.signal(signal.SIGUSR1)
    await _told(house, "is a symbolic link")
    assert await is_let_in(house, old)
    assert house.stop() == 0


async def _told(house: House, words: str) -> None:
    with trio.fail_after(CEILING_S):
        while words not in house.log.read_text():  # noqa: ASYNC110 - another process writes it
            await trio.sleep(0.05)


def test_a_service_without_tokens_survives_the_signal(house: House) -> None:
    house.start(*DEMO, "--no-auth")
    assert house.klbr("token", "rotate").code == 0
    assert house.klbr("send", "s", "what is 1+1").out == "1+1 = 2\n"
    assert house.stop() == 0
