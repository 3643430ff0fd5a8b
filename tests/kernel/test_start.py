"""Starting a kernel: what must be right, and what is said when it is not."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio
from kernel_lab import (
    CEILING_S,
    CONFIG,
    make_spec,
    open_lab,
    own_children,
    processes_of,
    run_kernel_in,
)

from klbr_trio.errors import ConfigError, KernelStartFailed
from klbr_trio.kernel import Kernel, KernelSpec, WorkerConfig


async def start(spec: KernelSpec, config: WorkerConfig = CONFIG) -> None:
    """Starts a kernel and ends it at once."""
    async with trio.open_nursery() as nursery:
        with trio.fail_after(CEILING_S):
            await nursery.start(run_kernel_in, config, spec)
        nursery.cancel_scope.cancel()


async def failure(spec: KernelSpec, config: WorkerConfig = CONFIG) -> str:
    """The text of the only error of a start that must fail; nothing of it is left."""
    before = own_children()
    with pytest.RaisesGroup(KernelStartFailed) as caught:
        await start(spec, config)
    (error,) = caught.value.exceptions
    assert own_children() == before
    assert processes_of(spec.workspace) == []
    return str(error)


async def test_a_kernel_states_the_release_that_it_found(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, {"lib/deep/er/x.py": "1", "prompt.md": "é"})
    async with open_lab(spec) as lab:
        assert lab.kernel.digest == spec.digest
        assert lab.kernel.alive
        assert lab.kernel.why is None
        assert not lab.kernel.busy
        assert "idle" in repr(lab.kernel)


async def test_another_release_than_asked_for_is_refused(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    (spec.release / "behavior.toml").write_text("changed")
    assert f"not {spec.digest}" in await failure(spec)


async def test_a_release_that_is_not_there_is_refused(tmp_path: Path) -> None:
    spec = attrs.evolve(make_spec(tmp_path), release=tmp_path / "nowhere")
    text = await failure(spec)
    assert "No such file or directory" in text
    assert "nowhere" in text


async def test_a_policy_that_fails_is_shown(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, {"policy.py": "import nothing_of_that_name\n"})
    text = await failure(spec)
    assert "policy.py" in text
    assert text.endswith("ModuleNotFoundError: No module named 'nothing_of_that_name'")


async def test_a_policy_that_ends_the_process_is_shown(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, {"policy.py": "import os\nprint('so long')\nos._exit(9)\n"})
    text = await failure(spec)
    assert "exited with code 9" in text
    assert text.endswith("so long")


async def test_a_policy_that_never_ends_is_given_up(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, {"policy.py": "while True: pass\n"})
    text = await failure(spec, attrs.evolve(CONFIG, start_seconds=0.5))
    assert "not ready within 0.5 s" in text


async def test_an_interpreter_that_is_none_is_told(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    assert "can't be started" in await failure(
        spec, attrs.evolve(CONFIG, python=Path("/no/python"))
    )
    text = await failure(spec, attrs.evolve(CONFIG, python=Path("/bin/false")))
    assert "its warden was exited with code 1" in text or "exited with code 1" in text


async def test_a_workspace_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spec = attrs.evolve(make_spec(tmp_path), workspace=tmp_path / "file" / "workspace")
    assert "can't be started" in await failure(spec)


async def test_a_workspace_is_kept_from_one_kernel_to_the_next(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    async with open_lab(spec) as lab:
        await lab.value("open('note', 'w').write('kept')")
    async with open_lab(spec) as lab:
        assert await lab.value("open('note').read()") == "'kept'"


async def test_the_owner_of_a_kernel_that_dies_is_not_disturbed(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        kernel: Kernel = await nursery.start(run_kernel_in, CONFIG, make_spec(tmp_path))
        await kernel.kill("enough")
    assert kernel.why == "enough"


async def test_modules_of_the_release_come_before_those_of_the_workspace(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, {"lib/tool.py": "where = 'release'"})
    spec.workspace.mkdir()
    (spec.workspace / "tool.py").write_text("where = 'workspace'")
    (spec.workspace / "own.py").write_text("where = 'workspace'")
    async with open_lab(spec) as lab:
        assert (
            await lab.value("import tool, own\ntool.where, own.where") == "('release', 'workspace')"
        )
        assert [path.name for path in (spec.release / "lib").iterdir()] == ["tool.py"]


def test_the_source_tree_is_found_from_a_checkout_and_from_the_package(tmp_path: Path) -> None:
    for root in (CONFIG.inside.parents[3], str(CONFIG.inside.parents[3]), tmp_path):
        config = WorkerConfig.source_tree(root)
        assert (config.inside / "worker.py").is_file()
        assert config.cell_seconds == 120.0
        assert config.workspaces is None


def test_settings_that_can_never_work_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="cell_seconds"):
        attrs.evolve(CONFIG, cell_seconds=0)
    monkeypatch.setattr("klbr_trio.kernel.config._OWN_INSIDE", tmp_path)
    with pytest.raises(ConfigError, match="reinstall"):
        WorkerConfig.source_tree(tmp_path)
