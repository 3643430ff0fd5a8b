from __future__ import annotations

import os
import socket
import stat
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from port_house import CEILING, GOOD, RawClient, answer, echo

from klbr_trio.errors import ConfigError
from klbr_trio.service.port.accept import Port, serve_port
from klbr_trio.service.port.gate import Policy, loopback_hosts
from klbr_trio.service.port.local_socket import open_unix_listener, socket_address

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@pytest.fixture
def careless_umask() -> Generator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder / "klbr.sock"


@pytest.mark.usefixtures("careless_umask")
async def test_the_socket_is_this_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "new" / "klbr.sock"
    async with open_unix_listener(path):
        assert mode(path) == 0o600
        assert mode(path.parent) == 0o700


async def test_it_speaks_as_the_port_does_and_knows_the_name_localhost(place: Path) -> None:
    port = Port(policy=Policy(hosts=loopback_hosts(8765), tokens=(GOOD,)))
    async with trio.open_nursery() as nursery:
        serve = partial(
            serve_port,
            [open_unix_listener(place)],
            handler_nursery=nursery,
            port=port,
            on_socket=echo,
            on_http=answer,
        )
        await nursery.start(serve)
        for host, status in (("localhost", 200), ("127.0.0.1:8765", 200), ("evil", 421)):
            reply = await ask(place, host)
            assert reply == status
        nursery.cancel_scope.cancel()


async def ask(path: Path, host: str) -> int:
    stream = await trio.open_unix_socket(path)
    async with stream:
        client = RawClient(stream)
        request = f"GET /metrics HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {GOOD}\r\n\r\n"
        await client.send(request.encode())
        return (await client.reply()).status


def open_to_all(path: Path) -> None:
    path.chmod(0o777)
    for folder in path.parents:
        if mode(folder) & 0o055 != 0o055:
            folder.chmod(mode(folder) | 0o055)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
async def test_another_user_is_hung_up_on(place: Path) -> None:
    port = Port(policy=Policy(hosts=loopback_hosts(8765), tokens=None))
    async with trio.open_nursery() as nursery:
        serve = partial(
            serve_port,
            [open_unix_listener(place)],
            handler_nursery=nursery,
            port=port,
            on_socket=echo,
            on_http=answer,
        )
        await nursery.start(serve)
        # The modes are opened on purpose, so that only the check of the peer is left.
        open_to_all(place)
        script = (
            "import os, socket, sys; os.setuid(65534);"
            "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
            "s.sendall(b'GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n');"
            "sys.stdout.buffer.write(s.recv(100))"
        )
        with trio.fail_after(CEILING):
            found = await trio.run_process(
                [sys.executable, "-c", script, str(place)],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        assert found.stdout == b"", found
        assert b"PermissionError" not in found.stderr, "it must have been able to connect"
        assert await ask(place, "localhost") == 200
        nursery.cancel_scope.cancel()


async def test_the_socket_of_a_dead_service_is_replaced(place: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(place))
    dead.close()
    async with open_unix_listener(place):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(place))


async def test_the_socket_of_a_living_service_is_left_alone(place: Path) -> None:
    async with open_unix_listener(place):
        inode = os.stat(place).st_ino  # noqa: PTH116 - a stat of a local file does not block
        with pytest.raises(ConfigError, match="another process"):
            open_unix_listener(place)
        assert os.stat(place).st_ino == inode  # noqa: PTH116
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(place))


@pytest.mark.parametrize("planted", ["link", "dangling link", "file", "folder"])
def test_what_lies_at_the_path_and_is_no_socket_is_not_touched(
    place: Path, tmp_path: Path, planted: str
) -> None:
    target = tmp_path / "precious"
    match planted:
        case "link":
            target.write_text("precious")
            place.symlink_to(target)
        case "dangling link":
            place.symlink_to(target)
        case "file":
            place.write_text("precious")
        case _:
            place.mkdir()
    before = place.lstat().st_ino
    with pytest.raises(ConfigError, match="not a socket"):
        open_unix_listener(place)
    assert place.lstat().st_ino == before
    assert target.exists() is (planted == "link")


def test_a_folder_that_others_can_open_is_refused(place: Path) -> None:
    place.parent.chmod(0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        open_unix_listener(place)
    assert not place.exists()


async def test_a_path_too_long_for_a_socket_address_works(place: Path) -> None:
    folder = place.parent / ("x" * 120)
    folder.mkdir(mode=0o700)
    path = folder / "klbr.sock"
    async with open_unix_listener(path):
        assert mode(path) == 0o600
        with socket.socket(socket.AF_UNIX) as client, socket_address(path) as address:
            client.connect(address)
        with pytest.raises(ConfigError, match="another process"):
            open_unix_listener(path)
