"""The service's kernels behind their walls: what a cell reaches, what an operator can do, what stays."""

from __future__ import annotations

import os
from functools import partial

import pytest
import trio
from e2e_house import House, klbr, wait_until
from fakes.provider import call_reply, open_provider

from klbr_trio.cli.demo.family import alive
from klbr_trio.kernel import Level, WorkerConfig, find_sandbox

CONFIG = WorkerConfig.source_tree(os.curdir)
FOUND = find_sandbox(CONFIG.python, CONFIG.inside, CONFIG.limits)
walled = pytest.mark.skipif(FOUND.level is Level.NONE, reason=f"no sandbox: {FOUND.describe()}")


def said(text: str) -> str:
    return f"from klbr import local, runtime\nawait local.send({text})\nawait runtime.done()"


SPY = """
import os, socket
found = []
for path in {paths!r}:
    try: found.append(open(path).read())
    except OSError as error: found.append(type(error).__name__)
try: socket.create_connection(("127.0.0.1", {port}), 5); found.append("connected")
except OSError as error: found.append(type(error).__name__)
"""


@walled
async def test_a_cell_reaches_neither_the_token_nor_the_store_nor_the_port(house: House) -> None:
    answers = [call_reply("pass")]
    async with open_provider(answers) as provider:
        house.launch("--model", "m", OPENAI_BASE_URL=provider.url)
        await trio.to_thread.run_sync(house.ready)
        port = int(house.service["url"].rpartition(":")[2])
        names = ("token", "klbr.sqlite", "lock", "service.json")
        paths = [str(house.state / name) for name in names] + [f"/proc/{house.pid}/environ"]
        answers[:] = [call_reply(SPY.format(paths=paths, port=port) + said("repr(found)"))]
        done = await trio.to_thread.run_sync(partial(house.klbr, "send", "s", "hi", "--json"))
        [found] = done.json["speech"]
        kinds = set(eval(found))  # a list of our own words
        assert kinds <= {"FileNotFoundError", "PermissionError", "ConnectionRefusedError"}, found
        assert await trio.to_thread.run_sync(house.stop) == 0


@walled
async def test_the_operator_sees_the_walls_interrupts_a_cell_and_gets_a_receipt(
    house: House,
) -> None:
    stuck = "print('begun', flush=True)\nimport subprocess\nsubprocess.run(['sleep', '1000'])"
    script = [call_reply(stuck), call_reply(said("'on we go'")), call_reply(stuck)]
    async with open_provider(script) as provider:
        house.launch("--model", "m", OPENAI_BASE_URL=provider.url)
        await trio.to_thread.run_sync(house.ready)
        run = trio.to_thread.run_sync
        status = await run(partial(house.klbr, "status", "--json"))
        assert status.json["sandbox"].startswith(FOUND.level.value)
        await run(partial(house.klbr, "send", "s", "hi", "--no-wait"))
        await run(wait_until, lambda: len(house.workers()) >= 3)
        assert (await run(partial(house.klbr, "interrupt", "s"))).code == 0
        await run(wait_until, lambda: house.said("s") == ["on we go"])
        await run(wait_until, lambda: "turn.completed" in house.kinds("s"))
        nothing = await run(partial(house.klbr, "interrupt", "s"))
        assert nothing.code == 1
        assert "no cell is running" in nothing.err
        await run(partial(house.klbr, "send", "s", "again", "--no-wait"))
        await run(wait_until, lambda: house.kinds("s").count("cell.requested") == 3)
        stopped = await run(partial(house.klbr, "stop", "s", "--json"))
        assert "survivors: none" in stopped.json["message"]
        assert house.workers() == set()
        assert await run(house.stop) == 0


@walled
async def test_a_service_that_is_killed_leaves_no_process_behind(house: House) -> None:
    cell = (
        "import os, subprocess\nfor _ in range(5):\n"
        "    subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print('begun', flush=True)\nwhile True: pass"
    )
    async with open_provider([call_reply(cell)]) as provider:
        house.launch("--model", "m", OPENAI_BASE_URL=provider.url)
        await trio.to_thread.run_sync(house.ready)
        await trio.to_thread.run_sync(partial(house.klbr, "send", "s", "hi", "--no-wait"))
        await trio.to_thread.run_sync(wait_until, lambda: len(house.workers()) >= 7)
        workers = house.workers()
        await trio.to_thread.run_sync(house.kill)
        await trio.to_thread.run_sync(wait_until, lambda: not alive(workers))


def test_the_doctor_says_what_is_there_and_what_is_wanted(house: House) -> None:
    done = house.klbr("doctor", "--sandbox", "none", "--json")
    assert done.json["sandbox"] == FOUND.level.value
    assert done.json["least"] == "none"
    assert klbr("doctor", "--sandbox", "strong").code == 78
