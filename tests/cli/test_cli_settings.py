from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klbr_trio.cli.serving import banner, kernel_settings, listen_address, service_settings
from klbr_trio.cli.settings import TABLE, api_key, resolve
from klbr_trio.daemon.run import Ready
from klbr_trio.daemon.settings import DemoProvider
from klbr_trio.errors import ConfigError
from klbr_trio.kernel import Level, Network
from klbr_trio.models import ModelConfig, ModelsConfig

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


def in_file(state: Path, text: str) -> None:
    (state / "klbr.toml").write_text(text)


def test_flag_before_variable_before_file_before_default(state: Path) -> None:
    environ = {"KLBR_STATE": str(state)}
    assert resolve({}, environ).text("soul") is None
    in_file(state, 'soul = "of the file"')
    assert resolve({}, environ).text("soul") == "of the file"
    environ["KLBR_SOUL"] = "of the variable"
    assert resolve({}, environ).text("soul") == "of the variable"
    settings = resolve({"soul": "of the flag"}, environ)
    assert settings.text("soul") == "of the flag"
    assert settings.found["soul"].source == "--soul"


@pytest.mark.parametrize(
    "setting", [one for one in TABLE if one.name != "state"], ids=lambda s: s.name
)
def test_each_setting_can_come_from_everywhere(setting: object, state: Path) -> None:
    assert hasattr(setting, "name")
    name: str = setting.name
    value = {
        "provider": "demo", "no_auth": "true", "log_level": "debug",
        "sandbox": "full", "network": "public", "kernels": "3",
        "drain_seconds": "3", "first_token_seconds": "3", "stall_seconds": "3",
    }.get(name, "3" if name.startswith("kernel_") else "some/text")  # fmt: skip
    variable = f"KLBR_{name.upper()}"
    by_variable = resolve({"state": str(state)}, {variable: value}).found[name]
    assert by_variable.source == variable
    by_flag = resolve({"state": str(state), name: value}, {}).found[name]
    assert by_flag.value == by_variable.value
    in_file(state, f"{name} = {value if value in ('3', 'true') else repr(value)}")
    by_file = resolve({"state": str(state)}, {}).found[name]
    assert by_file.value == by_variable.value
    assert by_file.source == f"{state / 'klbr.toml'}: {name}"


def test_an_empty_variable_counts_as_none(state: Path) -> None:
    assert resolve({"state": str(state)}, {"KLBR_MODEL": ""}).text("model") is None


def test_the_state_folder_is_the_xdg_one_by_default(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert resolve({}, environ).state == tmp_path / "klbr_trio"
    relative = resolve({}, {"XDG_STATE_HOME": "not/absolute"})
    assert relative.state.parts[-3:] == (".local", "state", "klbr_trio")


def test_a_named_file_takes_the_place_of_the_state_folders(state: Path, tmp_path: Path) -> None:
    in_file(state, 'soul = "of the folder"')
    named = tmp_path / "mine.toml"
    named.write_text(f'state = "{state}"\nmodel = "m"')
    settings = resolve({"config": str(named)}, {})
    assert (settings.state, settings.text("model"), settings.text("soul")) == (state, "m", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lisen = 'x'", "'lisen' is no setting"),
        ("no_auth = 3", "no_auth: must be true or false"),
        ("drain_seconds = -1", "drain_seconds: must be a number of seconds, 0 or more"),
        ("drain_seconds = true", "drain_seconds: must be a number of seconds"),
        ("drain_seconds = inf", "0 or more"),
        ("stall_seconds = 0", "more than 0"),
        ("provider = 'other'", "provider: must be one of demo"),
        ("soul = ''", "soul: must be a text that is not empty"),
        ("state = '/x'", "can't be set in the state folder itself"),
        ("soul = ", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_name(state: Path, text: str, said: str) -> None:
    in_file(state, text)
    with pytest.raises(ConfigError) as caught:
        resolve({"state": str(state)}, {})
    assert said in str(caught.value)
    assert str(state / "klbr.toml") in str(caught.value)


def test_a_missing_named_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        resolve({"config": str(tmp_path / "none.toml")}, {})


# What the service is to be


def model_of(state: Path, flags: dict[str, object], **environ: str) -> object:
    return service_settings(resolve({"state": str(state), **flags}, environ), environ).model


def one_model(url: str, name: str) -> ModelsConfig:
    return ModelsConfig(ModelConfig(url, name))


def test_a_model_needs_url_and_name(state: Path) -> None:
    assert model_of(state, {}) is None
    both: dict[str, object] = {"model_url": "http://127.0.0.1:1/v1", "model": "m"}
    assert model_of(state, both) == one_model("http://127.0.0.1:1/v1", "m")
    with pytest.raises(ConfigError, match="KLBR_MODEL"):
        model_of(state, {}, OPENAI_BASE_URL="http://127.0.0.1:1/v1")
    with pytest.raises(ConfigError, match="--model-url"):
        model_of(state, {}, KLBR_MODEL="m")


def test_our_own_variable_counts_before_that_of_other_programs(state: Path) -> None:
    found = model_of(
        state, {"model": "m"}, KLBR_MODEL_URL="http://ours/v1", OPENAI_BASE_URL="http://theirs/v1"
    )
    assert found == one_model("http://ours/v1", "m")


def test_the_key_comes_from_a_file_or_the_environment(state: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "key", tmp_path / "other"
    file.write_text("of-the-file\n")
    other.write_text("of-the-toml\n")
    base: dict[str, object] = {"state": str(state)}
    environ = {"OPENAI_API_KEY": "of-the-variable"}
    assert api_key(resolve(base, {}), {}).value is None
    in_file(state, f'api_key_file = "{other}"')
    assert api_key(resolve(base, {}), {}).value == "of-the-toml"
    assert api_key(resolve(base, environ), environ).value == "of-the-variable"
    flagged = resolve({**base, "api_key_file": str(file)}, environ)
    assert api_key(flagged, environ).value == "of-the-file"


def test_a_keys_file_that_is_missing_or_empty_is_refused(state: Path, tmp_path: Path) -> None:
    flags: dict[str, object] = {"model_url": "http://h/v1", "model": "m"}
    with pytest.raises(ConfigError, match="can't be read"):
        model_of(state, {**flags, "api_key_file": str(tmp_path / "none")})
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(ConfigError, match="is empty"):
        model_of(state, {**flags, "api_key_file": str(tmp_path / "empty")})


def test_the_demo_never_hides_a_model_that_was_named_as_well(state: Path) -> None:
    assert model_of(state, {"provider": "demo"}) == DemoProvider()
    assert model_of(state, {"provider": "demo"}, OPENAI_BASE_URL="http://h/v1") == DemoProvider()
    with pytest.raises(ConfigError, match="choose one"):
        model_of(state, {"provider": "demo", "model": "m", "model_url": "http://h/v1"})
    in_file(state, 'model = "m"\nmodel_url = "http://h/v1"')
    assert model_of(state, {"provider": "demo"}) == DemoProvider()
    in_file(state, 'provider = "demo"')
    assert model_of(state, {"model": "m", "model_url": "http://h/v1"}) == one_model(
        "http://h/v1", "m"
    )


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8765", ("127.0.0.1", 8765)),
        ("127.0.0.9:0", ("127.0.0.9", 0)),
        ("localhost:1", ("127.0.0.1", 1)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_addresses_of_the_loopback_are_taken(text: str, address: tuple[str, int]) -> None:
    assert listen_address(text) == address


@pytest.mark.parametrize(
    ("flags", "least"),
    [
        ({}, Level.REDUCED),
        ({"listen": "192.0.2.1:1"}, Level.FULL),
        ({"listen": "192.0.2.1:1", "sandbox": "none"}, Level.NONE),
        ({"sandbox": "full"}, Level.FULL),
    ],
)
def test_where_strangers_come_in_kernels_are_to_be_behind_everything(
    state: Path, flags: dict[str, object], least: Level
) -> None:
    assert kernel_settings(resolve({"state": str(state), **flags}, {})).least is least


def test_the_kernels_limits_are_settings(state: Path) -> None:
    named = {"kernel_memory_mb": "7", "network": "public", "network_domains": "PyPI.org, a.example"}
    found = kernel_settings(resolve({"state": str(state), **named}, {}))
    assert found.limits.memory_bytes == 7 * 1024 * 1024
    assert found.network is Network.PUBLIC
    assert found.domains == ("pypi.org", "a.example")
    with pytest.raises(ConfigError, match="whole number"):
        resolve({"state": str(state), "kernel_processes": "0"}, {})


@pytest.mark.parametrize(
    "text", ["8765", ":8765", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:²"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        listen_address(text)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "[::]", "192.168.1.4", "example.org", "127.evil.com", "2130706433", "127.1"]
)
def test_addresses_that_others_can_reach_are_refused(host: str) -> None:
    settings = resolve({"listen": f"{host}:8765"}, {})
    with pytest.raises(ConfigError, match="not a loopback address"):
        service_settings(settings, {})


def test_tls_lets_others_in_but_never_without_a_token() -> None:
    exposed = {"listen": "0.0.0.0:8765", "tls_cert": "c.pem", "tls_key": "k.pem"}
    found = service_settings(resolve({**exposed, "names": "a.example, b-1"}, {}), {})
    assert (found.host, found.names) == ("0.0.0.0", ("a.example", "b-1"))
    with pytest.raises(ConfigError, match="no_auth"):
        service_settings(resolve({**exposed, "no_auth": True}, {}), {})


@pytest.mark.parametrize("name", ["https://a", "a:1", "a b", "-a", "a.", "ä", "*"])
def test_names_are_host_names_alone(name: str) -> None:
    with pytest.raises(ConfigError, match="no host name"):
        service_settings(resolve({"names": f"fine.example,{name}"}, {}), {})


def test_the_banner_says_loudly_that_a_script_answers(tmp_path: Path) -> None:
    ready = Ready(
        url="http://127.0.0.1:1", state=tmp_path, model="demo", is_demo=True, release="a" * 64
    )
    assert any("DEMO" in line and "no language model" in line for line in banner(ready))
    none = Ready(
        url="http://127.0.0.1:1", state=tmp_path, model=None, is_demo=False, release="a" * 64,
        kernels="reduced; network off",
    )  # fmt: skip
    assert any("reduced; network off" in line for line in banner(none))
    assert any("nothing answers" in line for line in banner(none))
