"""The service with a model, without one, and with one that can't be reached."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path

import trio
from e2e_house import DEMO, House, klbr, wait_until
from fakes.provider import USAGE, call_reply, drip, open_provider, refused_url

KEY = "sk-marker-4711-never-to-be-seen"


def shown_by_procfs(pid: int) -> list[bytes]:
    return [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline")]


def kept_by(house: House) -> list[bytes]:
    """The log, and every file but the token's."""
    files = [path for path in house.state.rglob("*") if path.is_file() and path.name != "token"]
    return [path.read_bytes() for path in (house.log, *files)]


def said(text: str) -> str:
    return f"from klbr import local, runtime\nawait local.send({text!r})\nawait runtime.done()"


async def test_a_model_answers_and_its_key_is_nowhere_to_be_seen(house: House) -> None:
    spy = "import os; print(os.environ); print(open('/proc/self/environ').read())\n"
    async with open_provider([call_reply(spy + said("hello there"))]) as provider:
        house.launch(
            "--log-level", "debug", "--model", "m", OPENAI_API_KEY=KEY, OPENAI_BASE_URL=provider.url
        )
        await trio.to_thread.run_sync(house.ready)
        send = partial(house.klbr, "send", "s", "hi", "--json")
        done = await trio.to_thread.run_sync(send)
        assert done.json["speech"] == ["hello there"]
        assert provider.requests[0].headers["authorization"] == f"Bearer {KEY}"
        assert provider.requests[0].body["model"] == "m"
        shown = shown_by_procfs(house.pid)
        token = house.token
        assert await trio.to_thread.run_sync(house.stop) == 0
    texts = [*shown, *kept_by(house)]
    for secret in (KEY, token):
        assert [text[:80] for text in texts if secret.encode() in text] == []


async def test_the_key_comes_from_a_file_and_settings_from_klbr_toml(
    house: House, tmp_path: Path
) -> None:
    async with open_provider([call_reply(said("hello there"))]) as provider:
        key = tmp_path / "key"
        key.write_text(KEY + "\n")
        house.state.mkdir(mode=0o700)
        (house.state / "klbr.toml").write_text(
            f'model = "m"\nmodel_url = "{provider.url}"\napi_key_file = "{key}"\n'
            'soul = "You are a lighthouse keeper."\nno_auth = true\n'
        )
        await trio.to_thread.run_sync(house.start)
        assert not (house.state / "token").exists()
        done = await trio.to_thread.run_sync(house.klbr, "send", "s", "hi")
        assert done.out == "hello there\n"
        [request] = provider.requests
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert "lighthouse keeper" in json.dumps(request.body["messages"][0])


def test_without_a_model_an_input_is_stored_and_answered_later(house: House) -> None:
    house.start()
    done = house.klbr("send", "s", "hello", "--key", "k")
    assert done.code == 78
    receipt, refusal = done.err.splitlines()
    assert "stored as 1" in receipt
    assert "stored but nothing will answer it" in refusal
    again = house.klbr("send", "s", "hello", "--key", "k", "--no-wait", "--json")
    assert (again.code, again.json["duplicate"]) == (78, True)
    assert house.stop() == 0
    house.start(*DEMO)
    wait_until(lambda: house.said("s"))
    assert house.klbr("send", "s", "hello", "--key", "k").code == 0
    assert house.kinds("s").count("input.admitted") == 1


def test_a_model_that_can_not_be_reached_fails_the_turn_and_its_repair(house: House) -> None:
    with refused_url() as url:
        house.start("--model", "m", "--model-url", url)
        done = house.klbr("send", "s", "hello", "--json")
    assert done.code == 5
    assert done.json["outcome"] == "failed"
    assert done.json["failure"]["code"] == "provider_unavailable"
    assert "one repair follows" in done.err
    assert house.kinds("s").count("turn.failed") == 2
    assert house.klbr("status", "s", "--json").json["pending"] == 0


async def test_a_drain_lets_the_turn_end_and_takes_nothing_new(house: House) -> None:
    held = trio.Event()
    answer = drip(held, *call_reply(said("these are the last words")).pieces)
    async with open_provider([answer]) as provider:
        options = ("--drain-seconds", "50", "--model", "m", "--model-url", provider.url)
        await trio.to_thread.run_sync(partial(house.start, *options))
        sending = house.begin("send", "s", "hello")
        await provider.wait_requests(1)
        house.signal(signal.SIGTERM)
        await trio.to_thread.run_sync(wait_until, lambda: not announced(house))
        refused = await trio.to_thread.run_sync(house.klbr, "send", "s", "and more")
        assert refused.code == 75
        assert "starting or stopping" in refused.only_line
        held.set()
        out, _ = await trio.to_thread.run_sync(sending.communicate)
        assert (sending.returncode, out) == (0, "these are the last words\n")
        assert await trio.to_thread.run_sync(house.ended) == 0
    assert house.kinds("s")[-1] == "turn.completed"
    assert house.kinds("s").count("input.admitted") == 1


def announced(house: House) -> bool:
    return (house.state / "service.json").exists()


async def test_named_models_stand_in_for_each_other_and_status_says_what_was_spent(
    house: House,
) -> None:
    async with open_provider([call_reply(said("from the small one"))]) as provider:
        with refused_url() as closed:
            house.state.mkdir(mode=0o700)
            (house.state / "klbr.toml").write_text(
                'model = "big"\nfallbacks = ["small"]\n'
                f'[models.big]\nurl = "{closed}"\nmodel = "big-2"\n'
                f'[models.small]\nurl = "{provider.url}"\nmodel = "small-1"\nprice_input = 1000.0\n'
            )
            await trio.to_thread.run_sync(house.start)
            done = await trio.to_thread.run_sync(house.klbr, "send", "s", "hi")
            assert done.out == "from the small one\n"
            assert provider.requests[0].body["model"] == "small-1"
            told = await trio.to_thread.run_sync(house.klbr, "status", "s", "--json")
            assert told.json["usage"] == {
                **{name: float(number) for name, number in USAGE.items()},
                "cost": USAGE["prompt_tokens"] / 1000,
            }
            shown = await trio.to_thread.run_sync(house.klbr, "status", "s")
            assert "usage     7 tokens read, 5 written, $0.0070" in shown.out


def test_a_behaviour_that_wants_a_model_that_is_not_there_is_refused(
    house: House, tmp_path: Path
) -> None:
    behavior = tmp_path / "behavior"
    behavior.mkdir()
    (behavior / "behavior.toml").write_text('name = "b"\nmodel = "large"\n')
    (behavior / "prompt.md").write_text("Be brief.\n")
    done = klbr(
        "serve", "--state", str(house.state), "--listen", "127.0.0.1:0", "--behavior",
        str(behavior), "--model-url", "http://127.0.0.1:9/v1", "--model", "m",
    )  # fmt: skip
    assert done.code == 78
    assert "no model is named 'large'" in done.err
