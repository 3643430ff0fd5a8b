"""What cells ask of the host, and what the host makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from kernel_lab import (
    CEILING_S,
    CONFIG,
    lab_fixture,  # noqa: F401  # pytest finds it here
    make_spec,
    open_lab,
    until,
)

from klbr_trio.errors import CallRefused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kernel_lab import Lab


async def test_a_send_returns_when_the_host_has_answered(lab: Lab) -> None:
    assert (
        await lab.value("from klbr import local\nawait local.send('hello')\n'after'") == "'after'"
    )
    assert lab.calls == [("local.send", {"text": "hello"})]


async def test_what_can_be_sent(lab: Lab) -> None:
    assert (await lab.error("await local.send(5)")).endswith(
        "TypeError: local.send takes a str, not int"
    )
    assert "ValueError" in await lab.error("await local.send('')")
    assert "ValueError: too long" in await lab.error("await local.send('x' * 5_000_000)")
    await lab.value("await local.send('a\\0b \\ud800 \\U0001f600')")
    assert lab.said == ["a\0b \ufffd \U0001f600"]


async def test_many_calls_at_once_are_all_answered_in_their_order(lab: Lab) -> None:
    code = "import asyncio\nawait asyncio.gather(*(local.send(str(n)) for n in range(500)))\n'all'"
    assert await lab.value(code) == "'all'"
    assert lab.said == [str(n) for n in range(500)]


async def test_calls_work_from_threads_and_other_loops(lab: Lab) -> None:
    await lab.value(
        "import asyncio, threading\n"
        "asyncio.run(local.send('own loop'))\n"
        "t = threading.Thread(target=lambda: asyncio.run(local.send('thread')))\n"
        "t.start(); t.join()"
    )
    assert lab.said == ["own loop", "thread"]


async def test_a_refusal_is_an_exception_of_that_text_in_the_cell(lab: Lab) -> None:
    lab.answers["local.send"] = CallRefused("the session is muted")
    error = await lab.error("await local.send('x')")
    assert error.endswith("klbr._kernel.calls.Refused: the session is muted")
    code = "from klbr import Refused\ntry:\n    await local.send('x')\nexcept Refused as e:\n    caught = str(e)\ncaught"
    assert await lab.value(code) == "'the session is muted'"
    lab.answers["local.send"] = ValueError("no such text")
    assert (await lab.error("await local.send('x')")).endswith("ValueError: no such text")
    lab.answers.clear()
    await lab.value("await local.send('y')")
    assert lab.said == ["y"]


async def test_another_error_of_the_host_ends_the_kernel_and_comes_out(lab: Lab) -> None:
    lab.answers["local.send"] = LookupError("a bug")
    with pytest.raises(LookupError, match="a bug"):
        await lab.run("try:\n    await local.send('x')\nfinally:\n    pass")
    assert not lab.kernel.alive
    assert lab.kernel.why == "the cell was cancelled"


async def test_nothing_can_be_said_after_the_cell(lab: Lab) -> None:
    await lab.value(
        "import asyncio\nresult = []\nasync def late():\n    await gate.wait()\n"
        "    try:\n        await local.send('too late')\n"
        "    except RuntimeError as e:\n        result.append(str(e))\n        print('tried')\n"
        "gate = asyncio.Event()\ntask = asyncio.create_task(late())\nawait asyncio.sleep(0)\n"
        "asyncio.get_running_loop().call_later(0.01, gate.set)"
    )
    # Each cell is a chance for it to be said, so there is none until the task has tried.
    await until(lambda: lab.kernel.background == "tried\n")
    assert await lab.value("result") == "['local.send works only while a cell is running']"
    assert lab.said == []


async def test_a_forked_child_can_say_nothing(lab: Lab) -> None:
    code = (
        "import asyncio, os\nif os.fork() == 0:\n    try:\n        asyncio.run(local.send('from the child'))\n"
        "    except RuntimeError as e:\n        print(e)\n    os._exit(0)\nos.wait()\n'parent'"
    )
    result = await lab.run(code)
    assert result.value == "'parent'"
    assert result.output.endswith("local.send cannot be used in a forked child process\n")
    assert lab.said == []


async def test_wait_and_done_are_told_to_the_host(lab: Lab) -> None:
    await lab.value(
        "from klbr import runtime\nimport datetime as dt\n"
        "await runtime.wait(seconds=90, reason='tea')\n"
        "await runtime.wait(until=1_700_000_000.5)\n"
        "await runtime.wait(until='2030-01-01T00:00:00Z')\n"
        "await runtime.wait(until=dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc), reason='x' * 2000)\n"
        "await runtime.done()"
    )
    assert lab.calls == [
        ("runtime.wait", {"seconds": 90.0, "until_ms": None, "reason": "tea"}),
        ("runtime.wait", {"seconds": None, "until_ms": 1_700_000_000_500, "reason": None}),
        ("runtime.wait", {"seconds": None, "until_ms": 1_893_456_000_000, "reason": None}),
        ("runtime.wait", {"seconds": None, "until_ms": 1_893_456_000_000, "reason": "x" * 1000}),
        ("runtime.done", {}),
    ]


async def test_a_wait_that_is_none_is_refused_in_the_cell(lab: Lab) -> None:
    for args in ("", "seconds=1, until=2", "seconds=float('nan')", "seconds=-1", "reason='why'"):
        assert "ValueError" in await lab.error(f"await runtime.wait({args})")
    assert lab.calls == []


async def test_a_cell_that_waits_for_a_slow_host_can_be_stopped(tmp_path: Path) -> None:
    asked = trio.Event()

    async def never(_target: str, _args: Mapping[str, object]) -> object:
        asked.set()
        return await trio.sleep_forever()

    async with open_lab(make_spec(tmp_path), CONFIG) as lab:
        with trio.fail_after(CEILING_S):
            result = await lab.kernel.run(
                "c",
                "await local.send('x')",
                on_call=never,
                on_output=lab.live.append,
                timeout_s=0.2,
            )
        assert asked.is_set()
        assert result.error is not None
        assert "limit of 0.2 s" in result.error
        assert await lab.value("1 + 1") == "2"


async def test_calls_are_answered_while_a_cell_runs_in_its_grace(tmp_path: Path) -> None:
    async with open_lab(make_spec(tmp_path)) as lab:
        code = (
            "import asyncio\ntry:\n    await asyncio.sleep(1e6)\n"
            "finally:\n    await local.send('last words')"
        )
        error = await lab.error(code, timeout_s=0.1)
    assert "limit of 0.1 s" in error
    assert lab.said == ["last words"]
