# Importing pathlib would be a good part of this process's start.
# ruff: noqa: PTH118
"""The worker: says hello, then runs the cells that the host sends, until the host is gone."""

from __future__ import annotations

import _thread
import faulthandler
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

import klbr
from klbr._kernel import policy, release, report
from klbr._kernel.calls import Calls, connect
from klbr._kernel.cells import Cells
from klbr._kernel.channel import Channel
from klbr._kernel.interrupts import Interrupts
from klbr._kernel.loop import CellLoop, Jobs
from klbr._kernel.stdio import Stdio

if TYPE_CHECKING:
    from collections.abc import Callable

    Message = dict[str, object]
    Confine = Callable[[Message], None]


_PROXY = 3128


def serve(*, channel: int, inside: str, confine: Confine) -> None:
    """Runs the worker; never returns while the host lives."""
    sys.dont_write_bytecode = True  # a cell's import must not add a file to the release
    faulthandler.enable()
    link = Channel(channel)
    loop = CellLoop()
    interrupts = Interrupts(loop)
    calls = Calls(link, interrupts)
    connect(calls)
    os.register_at_fork(after_in_child=link.abandon)
    cells = Cells(loop=loop, interrupts=interrupts, stdio=Stdio(), inside=inside)
    cells.namespace.update(local=klbr.local, runtime=klbr.runtime)
    loop.ensure()
    interrupts.arm()
    calls.tell(_opening(link.receive(), inside=inside, confine=confine))
    jobs: Jobs[Message] = Jobs(loop)
    reader = threading.Thread(
        target=_read, args=(link, calls, jobs, interrupts), name="klbr channel", daemon=True
    )
    reader.start()
    while True:
        job = jobs.next()
        number = int(job["cell"])  # type: ignore[call-overload]
        cells.prepare()
        calls.begin(number)
        interrupts.expect(number)
        calls.end(cells.run(number, str(job["code"])))


def _opening(start: Message, *, inside: str, confine: Confine) -> Message:
    """Shuts the cage, makes the release's code importable, and states what was found.

    The release is read first: with its user id the process may lose the right to.
    """
    folder = str(start["release"])
    source = start["release_source"]
    try:
        digest = release.digest(folder if source is None else str(source))
        if source is not None:
            release.copy(str(source), folder)
        if start["proxy"] is not None:
            _hand_over_listener(int(start["proxy"]))  # type: ignore[call-overload]  # the host's int
        if os.getpgrp() != os.getpid():
            os.setpgid(0, 0)  # an interrupt is sent to the group
        confine(start["cage"])  # type: ignore[arg-type]  # the host's object
        os.chdir(str(start["workspace"]))
        library = os.path.join(str(start["workspace"]), ".lib")
        sys.path += [os.path.join(folder, "lib"), str(start["workspace"]), library]
        policy.load(folder)
    except BaseException as error:  # noqa: BLE001  # policy.py may raise anything; the host is told
        return {"op": "failed", "error": report.error_text(error, inside=inside)}
    version = ".".join(map(str, sys.version_info[:3]))
    return {"op": "hello", "protocol": 1, "python": version, "digest": digest}


def _hand_over_listener(fd: int) -> None:
    """Opens the proxy's listening socket in this process's own network, for the host to serve."""
    with socket.socket(fileno=fd) as host, socket.create_server(("127.0.0.1", _PROXY)) as listener:
        socket.send_fds(host, [b"!"], [listener.fileno()])


def _read(link: Channel, calls: Calls, jobs: Jobs[Message], interrupts: Interrupts) -> None:
    """The channel's thread: answers reach any event loop, interrupts a busy main thread."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    while True:
        message = link.receive()
        if message["op"] == "run":
            jobs.put(message)
        elif message["op"] == "reply":
            calls.answer(message)
        elif message["op"] == "interrupt":
            interrupts.wanted = message["cell"]
            if not message["again"]:
                interrupts.answered = False
            if int(message["cell"]) > calls.last:  # type: ignore[call-overload]  # the host's int
                # It has not begun: a task of an earlier cell keeps the loop busy.
                _thread.interrupt_main()
            elif message["cell"] == calls.cell and not interrupts.answered:
                # The group first: that frees a cell which waits for a subprocess. The second call
                # reaches one that waits in C's system(), which ignores the signal. Both are one
                # to Python, since no other thread of this process can run between them.
                os.killpg(os.getpgrp(), signal.SIGINT)
                _thread.interrupt_main()
