"""The demonstration, and how quickly help comes."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import TYPE_CHECKING

from e2e_house import environment, klbr

if TYPE_CHECKING:
    from pathlib import Path

HELP_CPU_S = 0.15

ONLY_THE_COMMAND_LINE = """
import sys, types
package = types.ModuleType("klbr_trio")
package.__path__ = [sys.argv[1]]
sys.modules["klbr_trio"] = package
from klbr_trio.cli.main import main
code = main(["--help"])
assert code == 0
loaded = {"trio", "httpx", "sqlite3", "cattrs", "trio_websocket"} & set(sys.modules)
assert not loaded, loaded
"""


def test_the_demo_holds_what_it_claims(tmp_path: Path) -> None:
    done = klbr("demo", "--json", TMPDIR=str(tmp_path))
    assert done.code == 0, done
    told = done.json
    assert told["sound"] is True
    claims = [claim["claim"] for claim in told["claims"]]
    assert "the input was answered after the restart, once" in claims
    assert len(claims) > 20
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_a_demo_whose_claims_are_broken_says_so(tmp_path: Path) -> None:
    behavior = tmp_path / "behavior"
    behavior.mkdir()
    (behavior / "behavior.toml").write_text("")
    (behavior / "prompt.md").write_text("x")
    (behavior / "policy.py").write_text(
        "def before_send(text):\n    return text.replace('Hello', 'Goodbye')\n"
    )
    done = klbr("demo", "--behavior", str(behavior), TMPDIR=str(tmp_path))
    assert done.code == 8
    assert "BROKEN it answered, once" in done.out
    assert "are broken" in done.out


def test_help_is_quick_and_loads_nothing_that_takes_time() -> None:
    import klbr_trio  # noqa: PLC0415 - where it lies

    argv = [sys.executable, "-c", ONLY_THE_COMMAND_LINE, *klbr_trio.__path__]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, capture_output=True, env=environment(), check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert b"Exit codes:" in done.stdout
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < HELP_CPU_S
