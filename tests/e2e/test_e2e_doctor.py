"""`klbr doctor` asks every configured model what an operator would ask it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio
from e2e_house import klbr
from fakes.provider import (
    Request,
    Scripted,
    call_reply,
    open_provider,
    refuse,
    refused_url,
    text_reply,
)

if TYPE_CHECKING:
    from pathlib import Path


def healthy(request: Request) -> Scripted:
    if not request.path.startswith("/v1/"):
        return refuse(404, "404 page not found")
    if request.method == "GET":
        return refuse(200, {"data": [{"id": "m-1"}]})
    return call_reply("print(42)") if "tools" in request.body else text_reply("1 2 3 4")


def configure(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "klbr.toml").write_text(text)


async def doctor(folder: Path, text: str, *more: str) -> tuple[int, dict[str, dict[str, str]], str]:
    """The exit code, the level of each check of each model, and everything that was printed."""
    configure(folder, text)
    ask = partial(klbr, "doctor", "--state", str(folder), "--sandbox", "none", *more)
    shown = await trio.to_thread.run_sync(ask)
    told = await trio.to_thread.run_sync(partial(ask, "--json"))
    assert told.code == shown.code
    levels = {
        model["name"]: {check["check"]: check["level"] for check in model["checks"]}
        for model in told.json["models"]
    }
    return shown.code, levels, shown.out + shown.err


ALL_OK = dict.fromkeys(("key", "model", "address", "stream", "tool"), "ok")


async def test_a_healthy_model_passes_every_check(tmp_path: Path) -> None:
    async with open_provider([healthy]) as provider:
        text = f'[models.good]\nurl = "{provider.origin}"\nmodel = "m-1"\n'
        code, levels, shown = await doctor(tmp_path / "s", text)
    assert (code, levels) == (0, {"good": ALL_OK})
    assert f"the API is at {provider.url}" in shown


async def test_every_model_is_asked_and_each_fault_has_its_fix(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-never-shown")
    no = refuse(401, {"error": {"message": "bad key sk-never-shown"}})
    async with open_provider([healthy]) as good, open_provider([no]) as bad:
        with refused_url() as closed:
            text = (
                'model = "good"\nfallbacks = ["bad"]\n'
                f'[models.good]\nurl = "{good.origin}"\nmodel = "m-2"\n'
                f'[models.bad]\nurl = "{bad.url}"\nmodel = "m"\napi_key_file = "{key}"\n'
                f'[models.gone]\nurl = "{closed}"\nmodel = "m"\n'
            )
            code, levels, shown = await doctor(tmp_path / "s", text)
    assert code == 8
    assert levels == {
        "good": {**ALL_OK, "model": "warn"},
        "bad": {"key": "fail"},
        "gone": {"address": "fail"},
    }
    assert "it lists m-1. Check the model's name" in shown
    assert "Set an API key" in shown
    assert "Check that the provider runs" in shown
    assert "sk-never-shown" not in shown


async def test_without_a_model_there_is_nothing_to_ask(tmp_path: Path) -> None:
    code, levels, shown = await doctor(tmp_path / "s", "")
    assert (code, levels) == (0, {})
    assert "inputs are stored and nothing answers" in shown
