"""A real service as a process on a folder of its own, and the real command line beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import attrs

from klbr_trio.cli.demo.family import Process, descendants
from klbr_trio.store import check_file
from klbr_trio.store.reader import Reader, connect_readonly

if TYPE_CHECKING:
    from collections.abc import Generator

CEILING_S = 60.0
"""Far more than anything here takes on a busy machine."""

DEMO = ("--provider", "demo")


def environment(**more: str) -> dict[str, str]:
    """This process's environment without settings of anybody's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KLBR_", "OPENAI_", "XDG_"))
    }
    return {**kept, **more}


@attrs.frozen
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def only_line(self) -> str:
        """The one line on stderr."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return lines[0]


def klbr(*args: str, stdin: str | bytes = "", **environ: str) -> Done:
    """The command line with these arguments, as a process."""
    done = subprocess.run(
        [sys.executable, "-m", "klbr_trio", *args],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        env=environment(**environ),
        timeout=CEILING_S,
        check=False,
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in err.replace('"traceback"', ""), err
    return Done(done.returncode, out, err)


def wait_until(reached: Any, what: str = "what was waited for") -> Any:
    """What `reached()` gives once it gives anything."""
    ends = time.monotonic() + CEILING_S
    while not (found := reached()):
        assert time.monotonic() < ends, f"{what} did not come"
        time.sleep(0.02)
    return found


@attrs.define(eq=False)
class House:
    """One state folder and the service on it, which may be started many times."""

    state: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.state.with_name(self.state.name + ".log")

    @property
    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    @property
    def service(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads((self.state / "service.json").read_text())
        return values

    @property
    def token(self) -> str:
        return (self.state / "token").read_text().strip()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def launch(self, *options: str, listen: str = "127.0.0.1:0", **environ: str) -> None:
        """Start a service and do not wait for it."""
        argv = [sys.executable, "-m", "klbr_trio", "serve", "--state", str(self.state)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*argv, "--listen", listen, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(**environ),
            )

    def start(self, *options: str, **environ: str) -> None:
        """A service is ready."""
        self.launch(*options, **environ)
        self.ready()

    def ready(self) -> None:
        wait_until(self._is_ready, "service.json")

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        try:
            return bool(self.service["pid"] == self.pid)
        except FileNotFoundError:
            return False

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def ended(self) -> int:
        """What the service ended with."""
        assert self.process is not None
        return self.process.wait(CEILING_S)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.ended() == -signal.SIGKILL

    def klbr(self, *args: str, stdin: str | bytes = "", **environ: str) -> Done:
        """A client command on this state folder."""
        return klbr(*args, "--state", str(self.state), stdin=stdin, **environ)

    def begin(self, *args: str, **popen: Any) -> subprocess.Popen[str]:
        """A client command that goes on in the background."""
        return subprocess.Popen(
            [sys.executable, "-m", "klbr_trio", *args, "--state", str(self.state)],
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                "env": environment(PYTHONUNBUFFERED="1"),
                **popen,
            },
        )

    def events(self, session: str) -> list[dict[str, Any]]:
        """The session's log as it is stored."""
        with closing(connect_readonly(self.state / "klbr.sqlite")) as conn:
            rows = Reader(conn).events(session, 0, 100_000)
        return [
            {
                "seq": row.seq,
                "session_id": row.session_id,
                "kind": row.kind,
                "payload": json.loads(row.payload),
                "created_ms": row.created_ms,
            }
            for row in rows
        ]

    def kinds(self, session: str) -> list[str]:
        return [event["kind"] for event in self.events(session)]

    def said(self, session: str) -> list[str]:
        return [e["payload"]["text"] for e in self.events(session) if e["kind"] == "local.sent"]

    def workers(self) -> set[Process]:
        """The kernels' processes."""
        return descendants(self.pid)

    def findings(self) -> list[str]:
        """What is wrong with the store."""
        return check_file(self.state / "klbr.sqlite")


@contextmanager
def open_house(folder: Path) -> Generator[House]:
    """A house in which nothing runs after the block."""
    house = House(folder / "state")
    try:
        yield house
    finally:
        if house.process is not None and house.process.poll() is None:
            house.process.kill()
            house.process.wait()


def read_line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()
