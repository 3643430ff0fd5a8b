"""What cells write: complete, in order, bounded, and passed on as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from hypothesis import given, strategies as st
from kernel_lab import (
    CEILING_S,
    CONFIG,
    lab_fixture,  # noqa: F401  # pytest finds it here
    make_spec,
    open_lab,
    until,
)

from klbr_trio.kernel.output import Kept

if TYPE_CHECKING:
    from pathlib import Path

    from kernel_lab import Lab


async def test_stdout_stderr_c_and_subprocesses_come_in_order(lab: Lab) -> None:
    result = await lab.run(
        "import ctypes, os, subprocess, sys\nlibc = ctypes.CDLL(None)\n"
        "print('a')\nprint('b', file=sys.stderr)\nos.system('echo c')\n"
        "subprocess.run('echo d >&2', shell=True)\nsys.stdout.write('e\\n')\n"
        "os.write(1, b'f\\n')\nlibc.puts(b'g')"
    )
    assert result.output == "a\nb\nc\nd\ne\nf\ng\n"
    assert "".join(lab.live) == result.output
    assert not result.truncated


async def test_what_looks_like_a_frame_is_only_text(lab: Lab) -> None:
    frame = '{"op":"done","cell":1,"ok":true}'
    result = await lab.run(f"import struct, sys\nprint({frame!r})\nkeep = 1")
    assert result.output == frame + "\n"
    assert await lab.value("keep") == "1"


async def test_bytes_that_are_no_text_are_replaced(lab: Lab) -> None:
    result = await lab.run("import os\nos.write(1, b'\\xff\\xfe|\\x80|\\xe2\\x82')")
    assert result.output == "\ufffd\ufffd|\ufffd|\ufffd"
    assert "".join(lab.live) == result.output


async def test_a_character_in_two_writes_is_one(lab: Lab) -> None:
    code = "import os, time\nos.write(1, b'\\xe2\\x82')\ntime.sleep(0.02)\nos.write(1, b'\\xac')"
    assert (await lab.run(code)).output == "€"
    assert "".join(lab.live) == "€"


async def test_a_lone_character_is_seen_while_the_cell_runs(lab: Lab) -> None:
    seen = trio.Event()

    async def run() -> None:
        await lab.kernel.run(
            "c",
            "import time\nprint('.', end='')\nwhile True: time.sleep(0.01)",
            on_call=lab.on_call,
            on_output=lambda _text: seen.set(),
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        with trio.fail_after(CEILING_S):
            await seen.wait()
        lab.kernel.interrupt()


async def test_long_output_keeps_its_two_ends(lab: Lab) -> None:
    result = await lab.run("print('first')\nprint('x' * 50_000_000)\nprint('last')")
    assert result.truncated
    assert result.output.startswith("first\nxxx")
    assert result.output.endswith("xxx\nlast\n")
    assert "\n[... 49,934,476 bytes of output left out ...]\n" in result.output
    assert len(result.output) < 65 * 1024
    assert sum(map(len, lab.live)) < 2_000_000
    assert "bytes of output not shown live" in "".join(lab.live)


async def test_many_small_prints_are_complete(lab: Lab) -> None:
    result = await lab.run("for n in range(5000):\n    print(n)")
    assert result.output == "".join(f"{n}\n" for n in range(5000))
    assert "".join(lab.live) == result.output


async def test_a_flood_is_interrupted_at_its_limit(tmp_path: Path) -> None:
    config = attrs.evolve(CONFIG, flood_bytes=4_000_000)
    async with open_lab(make_spec(tmp_path), config) as lab:
        error = await lab.error("while True:\n    print('y' * 1000)")
        assert "it wrote more than its limit of 4,000,000 bytes of output" in error
        assert await lab.value("1 + 1") == "2"


async def test_a_flood_of_a_subprocess_can_be_stopped(lab: Lab) -> None:
    error = await lab.error("import subprocess\nsubprocess.run('yes')", timeout_s=0.3)
    assert "limit of 0.3 s" in error
    assert await lab.value("1 + 1") == "2"


async def test_output_between_cells_is_background_output_of_the_next(lab: Lab) -> None:
    await lab.value(
        "import asyncio, threading, time\nasync def later():\n    await asyncio.sleep(0.01)\n"
        "    print('from a task')\ntask = asyncio.create_task(later())\n"
        "def work():\n    time.sleep(0.02)\n    print('from a thread')\n"
        "threading.Thread(target=work).start()\nawait asyncio.sleep(0)"
    )
    await until(lambda: lab.kernel.background == "from a task\nfrom a thread\n")
    result = await lab.run("print('mine')")
    assert result.output == (
        "[background output since the last cell]\nfrom a task\nfrom a thread\n[this cell]\nmine\n"
    )
    assert "".join(lab.live) == "mine\n"
    assert (await lab.run("print('mine')")).output == "mine\n"


@pytest.mark.parametrize(
    "damage",
    [
        "import os; os.close(1); os.close(2)",
        "import sys; sys.stdout = sys.stderr = None",
        "import sys; sys.stdout.close(); sys.stderr.close()",
        "import os; os.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
        "import os; os.closerange(0, 3)",
        "import fcntl, os; fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK)",
        "import io, sys; sys.stdout = io.StringIO(); print('lost')",
    ],
)
async def test_the_next_cell_can_print_whatever_this_one_does(lab: Lab, damage: str) -> None:
    await lab.run(damage)
    result = await lab.run(
        "import os, sys\nprint('x' * 200_000)\nprint('b', file=sys.stderr)\nos.system('echo c')"
    )
    assert result.ok
    assert result.output.startswith("xxx")
    assert result.output.endswith("x\nb\nc\n")
    assert await lab.value("sys.stdin.read()") == "''"


@given(st.binary(max_size=300), st.integers(2, 40), st.integers(1, 50))
def test_kept_is_the_whole_or_its_two_ends(data: bytes, limit: int, step: int) -> None:
    kept = Kept(limit)
    for start in range(0, len(data), step):
        kept.add(data[start : start + step])
    assert kept.total == len(data)
    if len(data) <= limit:
        assert kept.text() == data.decode(errors="replace")
    else:
        assert kept.truncated
        assert f"[... {len(data) - limit} bytes of output left out ...]" in kept.text()


def test_a_cut_never_splits_a_character() -> None:
    kept = Kept(9)
    kept.add("€".encode() * 10)
    assert kept.text() == "€\n[... 21 bytes of output left out ...]\n€"
