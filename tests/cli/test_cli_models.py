from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klbr_trio.cli.models import model_choice
from klbr_trio.cli.settings import resolve
from klbr_trio.errors import ConfigError
from klbr_trio.models import ModelConfig, ModelsConfig

if TYPE_CHECKING:
    from pathlib import Path

    from klbr_trio.daemon.settings import ModelChoice

BIG = '[models.big]\nurl = "http://big/v1"\nmodel = "big-2"\n'
SMALL = '[models.small]\nurl = "http://small/v1"\nmodel = "small-1"\n'


def chosen(
    folder: Path, text: str, flags: dict[str, object] | None = None, **environ: str
) -> ModelChoice:
    (folder / "klbr.toml").write_text(text)
    return model_choice(resolve({"state": str(folder), **(flags or {})}, environ), environ)


def refused(folder: Path, text: str, flags: dict[str, object] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        chosen(folder, text, flags)
    return str(caught.value)


def test_one_model_is_the_default(tmp_path: Path) -> None:
    big = ModelConfig("http://big/v1", "big-2")
    assert chosen(tmp_path, BIG) == ModelsConfig(big, named={"big": big})


def test_of_several_one_is_named(tmp_path: Path) -> None:
    big = ModelConfig("http://big/v1", "big-2")
    small = ModelConfig("http://small/v1", "small-1")
    both = {"big": big, "small": small}
    text = 'model = "big"\nfallbacks = ["small"]\n' + BIG + SMALL
    assert chosen(tmp_path, text) == ModelsConfig(big, named=both, fallbacks=(small,))
    by_flag = chosen(tmp_path, text, {"model": "small", "fallbacks": "big, small"})
    assert by_flag == ModelsConfig(small, named=both, fallbacks=(big, small))
    assert "say which with model" in refused(tmp_path, BIG + SMALL)


def test_others_variable_hides_no_table_and_ours_does(tmp_path: Path) -> None:
    text = 'model = "big"\n' + BIG
    found = chosen(tmp_path, text, OPENAI_BASE_URL="http://other/v1", OPENAI_API_KEY="sk-other")
    assert isinstance(found, ModelsConfig)
    assert (found.llm.url, found.llm.api_key) == ("http://big/v1", None)
    found = chosen(tmp_path, text, KLBR_MODEL_URL="http://ours/v1", OPENAI_API_KEY="sk-ours")
    assert isinstance(found, ModelsConfig)
    assert (found.llm.url, found.llm.model) == ("http://ours/v1", "big")
    assert found.llm.api_key == "sk-ours"


def test_every_setting_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-1\n")
    text = f"""
        stall_seconds = 7
        [models.one]
        url = "https://one/v1/"
        model = "m"
        api_key_file = "{tmp_path / "key"}"
        tool_name = "run_code"
        reasoning_field = ""
        echo_fields = ["signature"]
        stream_options = false
        extra_body = {{ temperature = 0.5, stop = ["x"] }}
        extra_headers = {{ x-org = "o" }}
        context_tokens = 4096
        price_input = 1
        price_output = 2.5
        connect_seconds = 3
        first_token_seconds = 4
        total_seconds = 5
        max_requests = 2
        attempts = 6
        patience_seconds = 0
        proxy = "http://proxy:3128"
    """
    found = chosen(tmp_path, text)
    assert isinstance(found, ModelsConfig)
    assert found.llm == ModelConfig(
        "https://one/v1/",
        "m",
        "sk-1",
        tool_name="run_code",
        reasoning_field=None,
        echo_fields=("signature",),
        stream_options=False,
        extra_body={"temperature": 0.5, "stop": ["x"]},
        extra_headers={"x-org": "o"},
        context_tokens=4096,
        price_input=1.0,
        price_output=2.5,
        connect_s=3.0,
        first_token_s=4.0,
        stall_s=7.0,
        total_s=5.0,
        max_requests=2,
        attempts=6,
        patience_s=0.0,
        proxy="http://proxy:3128",
    )
    assert "sk-1" not in repr(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('models = "x"\n', "models must be tables"),
        ("[models]\nbig = 1\n", "models.big: must be a table"),
        ('[models.big]\nmodel = "m"\n', "models.big: url is missing"),
        ('[models.big]\nurl = "http://h"\n', "models.big: model is missing"),
        (BIG + "modell = 1\n", "'modell' is no setting; these are: url, model"),
        (BIG + 'url2 = ""\n', "'url2' is no setting"),
        (BIG.replace("http:", "ftp:"), "models.big: the model's url 'ftp://big/v1'"),
        (BIG + 'tool_name = "a b"\n', "tool_name 'a b' is not a name"),
        (BIG + "tool_name = 1\n", "tool_name must be a text"),
        (BIG + 'reasoning_field = ["x"]\n', "reasoning_field must be a text"),
        (BIG + 'echo_fields = "x"\n', "echo_fields must be a list"),
        (BIG + "stream_options = 1\n", "stream_options must be true or false"),
        (BIG + "extra_body = 1\n", "extra_body must be a table"),
        (BIG + "extra_headers = { a = 1 }\n", "extra_headers must be a text"),
        (BIG + "context_tokens = 0\n", "context_tokens must be a whole number"),
        (BIG + "max_requests = true\n", "max_requests must be a whole number"),
        (BIG + "price_input = -1\n", "price_input must be a number"),
        (BIG + "stall_seconds = 0\n", "stall_s must be more than 0"),
        (BIG + 'api_key_file = "/no/such"\n', "api_key_file /no/such can't be read"),
        ('fallbacks = "x"\n' + BIG, "no model is named 'x' (there are: big)"),
        ('fallbacks = "x"\n', "no model is named 'x' (there are: none)"),
        ('model = "x"\n' + BIG, "or name one of: big"),
    ],
)
def test_what_cant_be_is_refused_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    message = refused(tmp_path, text)
    assert words in message
    assert str(tmp_path / "klbr.toml") in message or "model's name" in message
