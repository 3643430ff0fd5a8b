"""How one kernel's proxy is reached from inside its walls.

With a network of its own the worker opens the listening socket there and hands it to the host, so
that nothing but that kernel can connect to it. Behind Landlock the host listens on loopback; the
kernel may connect to that port alone, and a password keeps everybody else out.
"""

from __future__ import annotations

import secrets
import socket
from typing import TYPE_CHECKING, Final

import attrs
import trio

from klbr_trio.kernel.network.reach import Network

if TYPE_CHECKING:
    from klbr_trio.kernel.config import WorkerConfig

PORT: Final = 3128
"""Where the proxy listens in a network of the kernel's own; the worker knows it, too."""
_HANDED_OVER_S: Final = 20.0


@attrs.define(eq=False)
class Exit:
    """One kernel's way out, or none. Owns its sockets until `listener` or `close`."""

    _host_end: socket.socket | None = None
    _worker_end: socket.socket | None = None
    _listener: socket.socket | None = None
    password: str | None = None
    worker_fd: int | None = None
    """The descriptor by which the worker hands over its listening socket."""

    @property
    def exists(self) -> bool:
        """Whether there is a proxy to serve."""
        return self._host_end is not None or self._listener is not None

    @property
    def port(self) -> int | None:
        """Where the host listens on its own loopback, if it does."""
        return None if self._listener is None else int(self._listener.getsockname()[1])

    @property
    def passed(self) -> list[int]:
        """The descriptors that the worker inherits."""
        return [] if self.worker_fd is None else [self.worker_fd]

    def environment(self) -> dict[str, str]:
        """The variables that programs find a proxy by."""
        if not self.exists:
            return {}
        user = "" if self.password is None else f"klbr:{self.password}@"
        url = f"http://{user}127.0.0.1:{self.port or PORT}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
        return dict.fromkeys(names, url) | {"no_proxy": "localhost,127.0.0.1,::1"}

    def handed_over(self) -> None:
        """The host's copy of the worker's end is closed."""
        if self._worker_end is not None:
            self._worker_end.close()

    async def listener(self) -> socket.socket:
        """The listening socket; the caller's from here on.

        Raises:
            OSError: The worker has handed over something else, or nothing.
        """
        if self._listener is not None:
            listener, self._listener = self._listener, None
            return listener
        assert self._host_end is not None
        with trio.move_on_after(_HANDED_OVER_S):
            await trio.lowlevel.wait_readable(self._host_end)
        _, fds, *_ = socket.recv_fds(self._host_end, 1, 1)
        if len(fds) != 1:
            raise OSError("the worker has handed over no socket")
        found = socket.socket(fileno=fds[0])
        if found.family != socket.AF_INET or not found.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        ):
            found.close()
            raise OSError("the worker has handed over something else")
        return found

    def close(self) -> None:
        """Nothing of it is open."""
        for each in (self._host_end, self._worker_end, self._listener):
            if each is not None:
                each.close()


def open_exit(config: WorkerConfig) -> Exit:
    """The way out that the settings allow.

    Raises:
        OSError: There is no descriptor or port left.
    """
    level = config.sandbox.level
    if config.network is not Network.PUBLIC or level.rank == 1:
        return Exit()
    if level.namespaced:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003
        return Exit(host_end=ours, worker_end=theirs, worker_fd=theirs.fileno())
    return Exit(listener=socket.create_server(("127.0.0.1", 0)), password=secrets.token_urlsafe(24))
