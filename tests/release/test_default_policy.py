"""The hooks that ship mend slips with one meaning, and leave all else alone.

They run as in a kernel: in a process of their own, with the real `klbr` package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from klbr_trio.release import default_behavior

# Where the package lies within the kernel is the kernel's business.
_KERNEL = Path(__file__).parents[2] / "src" / "klbr_trio" / "kernel"
_INSIDE = next(_KERNEL.rglob("klbr/__init__.py")).parents[1]

_SCRIPT = """
import json, runpy, sys
inside, policy, hook = sys.argv[1:]
sys.path.insert(0, inside)
from klbr import Refused
try:
    answer = runpy.run_path(policy)[hook](json.load(sys.stdin))
except Refused as exc:
    print(json.dumps({"refused": str(exc)}))
else:
    print(json.dumps({"text": answer}))
"""


def _ask(hook: str, text: str) -> dict[str, str | None]:
    policy = default_behavior() / "policy.py"
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", _SCRIPT, _INSIDE, policy, hook],
        input=json.dumps(text),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, str | None] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    "code",
    [
        "",
        "x = 1\nx",
        "await local.send('hi')",
        "task = local.send('hi')\nawait task",
        "asyncio.gather(local.send('a'), local.send('b'))",
        "def f():\n    local.send('hi')",
        "class A:\n    local.send('hi')",
        "f = lambda: local.send('hi')",
        "locale.send('hi')",
        "print('''```python\n!ls\n```''')",
        "x = (",  # Python's own message is the better one
        "if x:\npass",
        "a %b",
        "\ud800",
        "-" * 100_000 + "1",
        "\n" * 200_000 + "(",
    ],
)
def test_a_cell_that_may_be_meant_so_is_run_as_it_is(code: str) -> None:
    assert _ask("before_cell", code) == {"text": None}


@pytest.mark.parametrize(
    ("code", "mended"),
    [
        ("local.send('hi')", "await local.send('hi')"),
        ("runtime.wait(seconds=5)", "await runtime.wait(seconds=5)"),
        ("local.send('ä'); runtime.done()", "await local.send('ä'); await runtime.done()"),
        ("for x in 'ab':\r\n    local.send(x)\r\n", "for x in 'ab':\n    await local.send(x)\n"),
        ("if '漢': local.send('a')", "if '漢': await local.send('a')"),
        ("async def f():\n  local.send('a')", "async def f():\n  await local.send('a')"),
        ("(local.send(\n  'a'))", "(await local.send(\n  'a'))"),
        ("```python\nx = 1\n```", "x = 1\n"),
        ("\n```\nlocal.send('a')\n```\n", "await local.send('a')\n"),
        ("```py\nx = (\n```", None),
    ],
)
def test_a_slip_with_one_meaning_is_mended(code: str, mended: str | None) -> None:
    assert _ask("before_cell", code) == {"text": mended}


@pytest.mark.parametrize("code", ["!pip install x", "x = 1\n  !ls", "%matplotlib inline", "%%bash"])
def test_notebook_lines_are_refused_with_advice(code: str) -> None:
    refused = _ask("before_cell", code)["refused"]
    assert refused is not None
    assert "subprocess.run" in refused


@pytest.mark.parametrize(
    "text",
    ["hi", " hi \n", "None", "0", "<class 'int'>", "the <coroutine object f at 0x7f> you see"],
)
def test_a_text_that_may_be_meant_is_sent_as_it_is(text: str) -> None:
    assert _ask("before_send", text) == {"text": None}


@pytest.mark.parametrize(
    "text",
    [" ", "\n\t", "<coroutine object f.<locals>.g at 0x7f2a>", "<generator object f at 0x1>\n"],
)
def test_a_text_that_nobody_can_mean_is_refused(text: str) -> None:
    assert "refused" in _ask("before_send", text)
