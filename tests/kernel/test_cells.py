"""A cell's value, error and what it leaves for the next one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kernel_lab import (
    CONFIG,
    environment_of,
    lab_fixture,  # noqa: F401  # pytest finds it here
    make_spec,
    open_lab,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from kernel_lab import Lab


async def test_the_last_expression_is_the_value(lab: Lab) -> None:
    assert await lab.value("x = 20\nx + 1") == "21"
    assert await lab.value("x += 1") is None
    assert await lab.value("None") is None
    assert await lab.value("x") == "21"


async def test_names_functions_and_imports_are_kept(lab: Lab) -> None:
    await lab.value("import math\ndef double(n):\n    return 2 * n")
    assert await lab.value("double(math.floor(2.5))") == "4"


async def test_a_cell_may_await_at_its_top_level(lab: Lab) -> None:
    assert await lab.value("import asyncio\nawait asyncio.sleep(0, 'slept')") == "'slept'"
    code = "out = []\nasync for n in ticks():\n    out.append(n)\nout"
    await lab.value("async def ticks():\n    yield 1\n    yield 2")
    assert await lab.value(code) == "[1, 2]"


async def test_asyncio_run_works_without_a_top_level_await(lab: Lab) -> None:
    await lab.value("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 5")
    assert await lab.value("asyncio.run(f())") == "5"
    assert await lab.value("await f()") == "5"


async def test_asyncio_run_beside_an_await_gets_a_hint(lab: Lab) -> None:
    error = await lab.error("import asyncio\nasyncio.run(asyncio.sleep(0))\nawait asyncio.sleep(0)")
    assert "asyncio.run() cannot be called" in error
    assert "Hint: this cell already runs in an event loop: use `await`" in error


async def test_a_value_that_was_not_awaited_says_so(lab: Lab) -> None:
    value = await lab.value("local.send('hello')")
    assert value is not None
    assert "write `await` in front of it" in value
    assert lab.said == []


async def test_tasks_go_on_between_cells(lab: Lab) -> None:
    await lab.value(
        "import asyncio\nticks = 0\nasync def tick():\n    global ticks\n    while True:\n"
        "        ticks += 1\n        await asyncio.sleep(0.001)\n"
        "task = asyncio.create_task(tick())\nawait asyncio.sleep(0)"
    )
    before = int(await lab.value("ticks") or 0)
    while int(await lab.value("ticks") or 0) < before + 3:
        pass
    assert "1 tasks in the background" in repr(lab.kernel)


async def test_context_variables_are_kept(lab: Lab) -> None:
    await lab.value("import asyncio, contextvars\nv = contextvars.ContextVar('v', default=0)")
    await lab.value("v.set(1)\nawait asyncio.sleep(0)")
    assert await lab.value("v.get()") == "1"


async def test_a_traceback_shows_the_cells_lines_and_no_others(lab: Lab) -> None:
    await lab.value("def divide(n):\n    return 1 / n")
    error = await lab.error("n = 0\ndivide(n)")
    lines = [line for line in error.splitlines() if set(line) - set(" ~^")]
    assert lines == [
        "Traceback (most recent call last):",
        '  File "<cell 2>", line 2, in <module>',
        "    divide(n)",
        '  File "<cell 1>", line 2, in divide',
        "    return 1 / n",
        "ZeroDivisionError: division by zero",
    ]


async def test_no_traceback_shows_the_folder_of_the_kernel(lab: Lab) -> None:
    for code in ("await local.send('')", "await runtime.wait()", "raise ValueError('x') from None"):
        assert str(CONFIG.inside) not in await lab.error(code)


async def test_a_syntax_error_points_at_its_line(lab: Lab) -> None:
    error = await lab.error("a = 1\nb = = 2")
    assert 'File "<cell 1>", line 2' in error
    assert "b = = 2" in error
    assert error.endswith("SyntaxError: invalid syntax")
    assert "a" not in (await lab.value("dir()") or "").split("'")


async def test_exception_groups_and_causes_are_shown(lab: Lab) -> None:
    code = "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise ExceptionGroup('both', [KeyError('k')]) from e"
    error = await lab.error(code)
    assert "ZeroDivisionError" in error
    assert "KeyError: 'k'" in error


async def test_leaving_is_reported_and_the_kernel_goes_on(lab: Lab) -> None:
    await lab.value("keep = 1")
    for code in ("import sys; sys.exit(3)", "exit(3)", "quit(3)", "raise SystemExit(3)"):
        assert (await lab.error(code)).startswith("SystemExit: 3")
    assert await lab.value("keep") == "1"


async def test_leaving_through_a_task_ends_neither_cell_nor_kernel(lab: Lab) -> None:
    code = (
        "import asyncio, sys\nasync def leave():\n    sys.exit(4)\n"
        "t = asyncio.create_task(leave())\nawait asyncio.sleep(0.01)\n'still here'"
    )
    assert await lab.value(code) == "'still here'"


async def test_nobody_can_be_asked(lab: Lab) -> None:
    assert "no terminal" in await lab.error("input('name? ')")
    assert "no terminal" in await lab.error("breakpoint()")
    assert await lab.value("import sys; sys.stdin.read()") == "''"


async def test_a_memory_error_is_an_error_like_others(lab: Lab) -> None:
    await lab.value("keep = 1")
    error = await lab.error("raise MemoryError")
    assert error.endswith("MemoryError")
    error = await lab.error("bytearray(1 << 62)")
    assert error.endswith("MemoryError")
    assert await lab.value("keep") == "1"


async def test_long_values_are_cut_and_marked(lab: Lab) -> None:
    for code in ("'a' * 10**8", "b'a' * 10**8", "list(range(10**6))", "'é' * 70000"):
        value = await lab.value(code)
        assert value is not None
        assert len(value) <= 64 * 1024 + 100
        assert "..." in value


async def test_a_value_of_many_small_parts_is_not_cut(lab: Lab) -> None:
    assert await lab.value("list(range(1000))") == repr(list(range(1000)))
    assert await lab.value("{'b': 1, 'a': [(2,), {3}]}") == "{'b': 1, 'a': [(2,), {3}]}"


async def test_objects_that_fail_to_show_themselves(lab: Lab) -> None:
    await lab.value(
        "class Bad:\n    def __repr__(self):\n        raise ValueError('no')\n"
        "class Worse(Exception):\n    def __str__(self):\n        raise ValueError('no')\n"
        "class Endless:\n    def __repr__(self):\n        while True: pass\n"
        "class Silly:\n    def __repr__(self):\n        return 5"
    )
    assert await lab.value("Bad()") == "<Bad object; its repr() failed: ValueError>"
    assert await lab.value("Silly()") == "<Silly object; its repr() failed: TypeError>"
    assert "str() failed" in await lab.error("raise Worse")
    assert "limit of 0.2 s" in await lab.error("Endless()", timeout_s=0.2)
    assert await lab.value("1 + 1") == "2"


async def test_deep_things(lab: Lab) -> None:
    assert "RecursionError" in await lab.error("def f():\n    f()\nf()")
    await lab.value("deep = []\nfor _ in range(5000):\n    deep = [deep]")
    assert await lab.value("deep")  # how deep a repr can go depends on the interpreter
    await lab.value("for _ in range(10**6):\n    deep = [deep]")
    assert await lab.value("deep") == "[[[[[[[...]]]]]]]"
    assert "too many nested" in await lab.error("(" * 1000 + ")" * 1000)
    assert await lab.value("1 + 1") == "2"


async def test_lone_surrogates_leave_the_kernel_replaced(lab: Lab) -> None:
    result = await lab.run("print('\\udc80')\nraise ValueError('\\ud800')")
    assert result.output == "\\udc80\n"
    assert result.error is not None
    assert result.error.endswith("ValueError: \ufffd")
    assert await lab.value("class A:\n    __repr__ = lambda self: '\\ud800'\nA()") == "\ufffd"
    assert (await lab.run("'\ud800'")).value is not None


async def test_pickle_finds_what_cells_define(lab: Lab) -> None:
    await lab.value("import pickle\nclass Point:\n    pass")
    assert await lab.value("type(pickle.loads(pickle.dumps(Point()))) is Point") == "True"


async def test_a_cleared_interpreter_still_runs_cells(lab: Lab) -> None:
    await lab.run("import sys\nsys.modules.clear()")
    assert await lab.value("1 + 1") == "2"
    await lab.value("from klbr import local\nawait local.send('still connected')")
    assert lab.said == ["still connected"]


async def test_a_closed_or_stopped_loop_is_replaced(lab: Lab) -> None:
    await lab.value("import asyncio\nasyncio.get_event_loop().close()")
    assert await lab.value("await asyncio.sleep(0, 1)") == "1"
    assert await lab.value("asyncio.get_running_loop().stop()\nawait asyncio.sleep(0.01, 2)") == "2"
    assert "RuntimeError" in await lab.error(
        "asyncio.get_running_loop().close()\nawait asyncio.sleep(0)"
    )
    assert await lab.value("await asyncio.sleep(0, 3)") == "3"


async def test_nothing_in_a_workspace_stops_a_kernel_from_starting(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    spec.workspace.mkdir()
    for name in ("json", "asyncio", "klbr", "sitecustomize", "usercustomize", "worker", "os"):
        (spec.workspace / f"{name}.py").write_text("raise SystemExit('from the workspace')")
    (spec.workspace / "mine.py").write_text("here = True")
    async with open_lab(spec) as lab:
        assert await lab.value("import json, asyncio, klbr, mine\nmine.here") == "True"


async def test_a_cell_runs_in_its_private_workspace(lab: Lab) -> None:
    workspace = "/workspace" if lab.config.sandbox.level.namespaced else str(lab.workspace)
    assert await lab.value("import os; os.getcwd()") == repr(workspace)
    await lab.value("open('here', 'w').close()")
    assert "here" in [path.name for path in lab.workspace.glob("*")]
    assert lab.workspace.stat().st_mode & 0o777 == 0o700


async def test_nothing_of_the_hosts_environment_or_files_is_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLBR_TEST_SECRET", "do not tell")
    secret = (tmp_path / "secret").open("w")
    os.set_inheritable(secret.fileno(), True)
    try:
        async with open_lab(make_spec(tmp_path)) as lab:
            everything = await lab.value(
                "import os, subprocess\n"
                "fds = [os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')"
                " if os.path.exists(f'/proc/self/fd/{fd}')]\n"
                "(dict(os.environ), fds, subprocess.run('env', capture_output=True).stdout)"
            )
            assert everything is not None
            everything += environment_of(lab.warden)
    finally:
        secret.close()
    assert "do not tell" not in everything
    assert str(tmp_path / "secret") not in everything
