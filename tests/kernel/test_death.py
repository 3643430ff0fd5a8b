"""How a kernel's end is noticed and told, and what it takes with it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import trio
import trio.lowlevel
from kernel_lab import (
    CEILING_S,
    daemons,
    lab_fixture,  # noqa: F401  # pytest finds it here
    make_spec,
    open_lab,
    until,
)

from klbr_trio.kernel.marks import marked

if TYPE_CHECKING:
    from pathlib import Path

    from kernel_lab import Lab

    from klbr_trio.kernel import CellResult


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os._exit(5)", "exited with code 5"),
        ("import os; os._exit(0)", "exited with code 0"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "killed by SIGTERM"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGALRM)", "killed by SIGALRM"),
        ("import os; os.abort()", "killed by SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV"),
        ("import os; os.closerange(3, 256)", "exited with code 70"),
        ("import builtins; builtins.__dict__.clear()", "exited with code 1"),
    ],
)
async def test_a_kernel_that_ends_by_itself_is_told_with_the_reason(
    lab: Lab, code: str, why: str
) -> None:
    mark = lab.mark()
    result = await lab.run(f"print('last words')\n{code}")
    assert not result.ok
    assert result.died == why
    assert result.error == f"the kernel died: {why}; its variables are gone"
    assert result.output.startswith("last words\n")
    assert not lab.kernel.alive
    assert lab.kernel.why == why
    assert marked(mark) == []


async def test_a_kill_from_outside_is_told_with_the_memory_it_had(lab: Lab) -> None:
    os.kill(lab.kernel.pid, signal.SIGKILL)
    with trio.fail_after(CEILING_S):
        why = await lab.kernel.wait_dead()
    assert why.startswith("killed by SIGKILL (its memory had peaked at ")


async def test_a_crash_shows_where_it_happened(lab: Lab) -> None:
    result = await lab.run("def crash():\n    import ctypes\n    ctypes.string_at(0)\ncrash()")
    assert "Fatal Python error: Segmentation fault" in result.output
    assert 'File "<cell 1>", line 3 in crash' in result.output


async def test_a_dead_kernel_runs_nothing(lab: Lab) -> None:
    await lab.run("import os; os._exit(5)")
    result = await lab.run("1 + 1")
    assert result.died == "exited with code 5"
    assert not result.ok
    killed = await lab.kernel.kill("again")
    assert killed.survivors == ()
    assert lab.kernel.why == "exited with code 5"


async def test_what_the_kernel_started_ends_with_it(lab: Lab) -> None:
    mark = lab.mark()
    await lab.value(daemons(3))
    await lab.value(daemons(3, bare=True))
    assert len(marked(mark)) == lab.idle_processes + 6
    await lab.run("import os; os._exit(5)")
    assert marked(mark) == []


async def test_death_is_noticed_while_a_child_holds_everything_open(lab: Lab) -> None:
    code = "import os\nif os.fork() == 0:\n    import time\n    time.sleep(1000)\nos._exit(5)"
    assert (await lab.run(code)).died == "exited with code 5"


async def test_death_between_cells_is_noticed(lab: Lab) -> None:
    await lab.value(
        "import asyncio, os\nasync def end():\n    await asyncio.sleep(0.01)\n    os._exit(6)\n"
        "t = asyncio.create_task(end())\nawait asyncio.sleep(0)"
    )
    with trio.fail_after(CEILING_S):
        assert await lab.kernel.wait_dead() == "exited with code 6"


async def test_a_result_sent_before_the_death_counts(lab: Lab) -> None:
    code = (
        "import atexit, os, threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), os._exit(7))).start()\n'result'"
    )
    assert await lab.value(code) == "'result'"
    with trio.fail_after(CEILING_S):
        assert await lab.kernel.wait_dead() == "exited with code 7"


async def test_a_killed_warden_takes_nothing_less_with_it(lab: Lab) -> None:
    """Neither daemons nor one that was started with an empty environment stay."""
    mark = lab.mark()
    await lab.value(daemons(3))
    await lab.value(daemons(3, bare=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lab.run, "print('!')\nimport time; time.sleep(100)")
        await until(lambda: bool(lab.live))
        os.kill(lab.warden, signal.SIGKILL)
    assert lab.kernel.why is not None
    assert "killed by SIGKILL" in lab.kernel.why
    assert marked(mark) == []


async def test_other_children_of_the_host_are_left_alone(tmp_path: Path) -> None:
    other = await trio.lowlevel.open_process(["sleep", "1000"])  # shares nothing with kernels
    async with open_lab(make_spec(tmp_path)) as lab:
        os.kill(lab.warden, signal.SIGKILL)
        with trio.fail_after(CEILING_S):
            await lab.kernel.wait_dead()
        assert other.poll() is None
    other.kill()
    await other.wait()


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        ("b'not json'", "a frame is not JSON"),
        ("b'[' * 200_000", "a frame is not JSON (RecursionError)"),
        ('b\'{"op":"done","cell":NaN}\'', "a frame is not JSON"),
        ("b'[]'", "a frame is not an object"),
        ('b\'{"op":"shutdown"}\'', "unknown frame 'shutdown'"),
        ('b\'{"op":"done","cell":1}\'', "a frame has not the fields"),
        ('b\'{"op":"call","rid":1,"cell":1,"target":"os.system","args":{}}\'', "unknown call"),
        ("b'x' * (2 << 20)", "a frame of 2,097,152 bytes"),
    ],
)
async def test_a_forged_frame_kills_the_kernel(lab: Lab, frame: str, why: str) -> None:
    error = await lab.error(SEND.format(frame=frame) + "import time; time.sleep(100)")
    assert error.startswith("the kernel died: protocol violation: ")
    assert why in error


SEND = """
from klbr._kernel import calls
frame = {frame}
calls._calls[0]._channel._socket.sendall(len(frame).to_bytes(4, 'big') + frame)
"""


async def test_a_forged_end_of_another_cell_is_ignored(lab: Lab) -> None:
    forged = (
        'b\'{"op":"done","cell":999,"ok":true,"value":"forged","error":null,'
        '"interrupted":false,"threads":0,"tasks":0}\''
    )
    assert await lab.value(SEND.format(frame=forged) + "'mine'") == "'mine'"
    assert await lab.value("'next'") == "'next'"


async def test_a_forged_call_of_another_cell_is_refused(lab: Lab) -> None:
    forged = 'b\'{"op":"call","rid":77,"cell":999,"target":"local.send","args":{"text":"forged"}}\''
    assert await lab.value(SEND.format(frame=forged) + "'mine'") == "'mine'"
    await lab.value("await local.send('true')")
    assert lab.said == ["true"]


async def test_one_kernels_violation_does_not_touch_another(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with (
        open_lab(make_spec(tmp_path / "a")) as bad,
        open_lab(make_spec(tmp_path / "b")) as good,
    ):
        await bad.run(SEND.format(frame="b'garbage'") + "import time; time.sleep(100)")
        assert not bad.kernel.alive
        assert await good.value("1 + 1") == "2"


async def test_a_forked_child_that_falls_out_of_a_cell_ends(lab: Lab) -> None:
    mark = lab.mark()
    result = await lab.run(
        "import os\npid = os.fork()\nos.write(1, b'child\\n' if pid == 0 else b'parent\\n')"
    )
    assert result.ok
    waited = await lab.run("os.waitpid(pid, 0)")
    assert {"child", "parent"} <= {*result.output.split(), *waited.output.split()}
    code = "import asyncio\nawait asyncio.sleep(0)\npid = os.fork()\nif pid == 0:\n    1/0\nos.waitpid(pid, 0)[1]"
    result = await lab.run(code)
    assert result.value == str(1 << 8)
    assert "ZeroDivisionError" in result.output
    assert len(marked(mark)) == lab.idle_processes


async def test_the_cells_that_wait_are_told_at_once(lab: Lab) -> None:
    results: list[CellResult] = []

    async def run() -> None:
        results.append(await lab.run("import time; time.sleep(1000)"))

    mark = lab.mark()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        with trio.fail_after(CEILING_S):
            await until(lambda: lab.kernel.busy)
            await lab.kernel.kill("the operator wants it")
    assert results[0].error == results[0].died == "the operator wants it"
    assert marked(mark) == []
