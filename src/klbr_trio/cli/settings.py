"""Settings: flag before variable before file before default, each with where it came from.

The table is the one place that knows the names: the flag is the name with dashes, the
variable `KLBR_` and the name, the key in `klbr.toml` the name itself.
"""

from __future__ import annotations

import enum
import math
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import attrs

from klbr_trio.config import (
    DRAIN_SECONDS,
    FIRST_TOKEN_SECONDS,
    KERNEL_IDLE_SECONDS,
    KERNELS,
    LISTEN_HOST,
    LISTEN_PORT,
    STALL_SECONDS,
)
from klbr_trio.errors import ConfigError
from klbr_trio.kernel.limits import MIB, Limits

Value: TypeAlias = str | float | bool | Path | None

_HUGE: Final = 2**40
API_KEY_VARIABLE: Final = "OPENAI_API_KEY"
OTHERS_URL: Final = "OPENAI_BASE_URL"
MODELS: Final = "models"
"""The tables of `klbr.toml` with one model each; read by `klbr_trio.cli.models`."""

FILE_NAME: Final = "klbr.toml"
_LIMITS: Final = Limits()


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text that is not empty")
    return value


def _path(value: object) -> Path:
    return Path(_text(value)).expanduser()


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a number of seconds")  # noqa: TRY004 - one kind of refusal
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError("must be a number of seconds, 0 or more")
    return seconds


def _positive_seconds(value: object) -> float:
    seconds = _seconds(value)
    if not seconds:
        raise ValueError("must be a number of seconds, more than 0")
    return seconds


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("must be a whole number, more than 0")  # noqa: TRY004 - as above
    try:
        number = int(value)
    except ValueError:
        number = 0
    if not 0 < number < _HUGE:
        raise ValueError("must be a whole number, more than 0")
    return number


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    known = {"1": True, "true": True, "yes": True, "on": True}
    known |= {"0": False, "false": False, "no": False, "off": False}
    if isinstance(value, str) and value.lower() in known:
        return known[value.lower()]
    raise ValueError("must be true or false")


def _names(value: object) -> str:
    """Names by commas; in the file also a list."""
    names = value if isinstance(value, list) else [value]
    return ",".join(_text(name) for name in names)


def _one_of(*names: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if isinstance(value, str) and value.lower() in names:
            return value.lower()
        raise ValueError(f"must be one of {', '.join(names)}")

    return parse


@attrs.frozen
class Setting:
    """One setting.

    Attributes:
        default: None stands for none.
        also: A variable of other programs that counts after our own.
    """

    name: str
    parse: Callable[[object], Value]
    meaning: str
    default: Value = None
    also: str | None = None

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables, the one that counts first."""
        own = f"KLBR_{self.name.upper()}"
        return (own,) if self.also is None else (own, self.also)

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"--{self.name.replace('_', '-')}"


TABLE: Final[tuple[Setting, ...]] = (
    Setting("state", _path, "where everything lives"),
    Setting(
        "listen", _text, "the TCP address; port 0 takes a free one", f"{LISTEN_HOST}:{LISTEN_PORT}"
    ),
    Setting("model_url", _text, "the model's API base", also=OTHERS_URL),
    Setting("model", _text, "the name that the provider knows the model by, or one of [models]"),
    Setting("fallbacks", _names, "models of [models] to ask while it is unavailable, by commas"),
    Setting("api_key_file", _path, f"a file with the provider's key; also {API_KEY_VARIABLE}"),
    Setting("provider", _one_of("demo"), "demo: the scripted provider instead of a model"),
    Setting("behavior", _path, "the behaviour to publish and run; default: the one that ships"),
    Setting("soul", _text, "who this agent is, given to the model; default: the behaviour's"),
    Setting(
        "drain_seconds",
        _seconds,
        "how long a running turn may go on at shutdown",
        DRAIN_SECONDS,
    ),
    Setting(
        "first_token_seconds",
        _positive_seconds,
        "how long the model may be silent before its answer",
        FIRST_TOKEN_SECONDS,
    ),
    Setting(
        "stall_seconds",
        _positive_seconds,
        "how long the model may be silent during its answer",
        STALL_SECONDS,
    ),
    Setting(
        "sandbox",
        _one_of("full", "reduced", "none"),
        "the least that stands around kernels: full, reduced, or none (plain processes); beyond "
        "loopback the default is full",
        "reduced",
    ),
    Setting("network", _one_of("off", "public", "open"), "what kernels can reach", "off"),
    Setting("network_domains", _text, "the only names of `public`, by commas; default: all"),
    *(
        Setting(f"kernel_{name}", _number, meaning, default)
        for name, meaning, default in (
            ("memory_mb", "memory of a kernel with all it starts", _LIMITS.memory_bytes // MIB),
            ("process_memory_mb", "memory of one process", _LIMITS.process_memory_bytes // MIB),
            ("processes", "processes and threads of a kernel", _LIMITS.processes),
            ("file_mb", "size of one file", _LIMITS.file_bytes // MIB),
            ("open_files", "open files of one process", _LIMITS.open_files),
            ("disk_mb", "what a workspace holds", _LIMITS.disk_bytes // MIB),
            ("disk_files", "files in a workspace", _LIMITS.disk_files),
            ("free_mb", "what stays free on the disk", _LIMITS.free_bytes // MIB),
            ("temporary_mb", "a kernel's own /tmp", _LIMITS.temporary_bytes // MIB),
        )
    ),
    Setting(
        "kernel_idle_seconds",
        _positive_seconds,
        "an idle kernel is let go after so long",
        KERNEL_IDLE_SECONDS,
    ),
    Setting("kernels", _number, "kernels kept for sessions that do not run", KERNELS),
    Setting("no_auth", _flag, "no token, on loopback only", default=False),
    Setting("tls_cert", _path, "the certificate chain for TLS; needed beyond loopback"),
    Setting("tls_key", _path, "its key, a file of this user alone"),
    Setting("names", _text, "host names that clients may use, by commas, besides the addresses"),
    Setting(
        "log_level",
        _one_of("debug", "info", "warning", "error"),
        "the least that is logged",
        "info",
    ),
    Setting("url", _text, "a service to speak to, instead of the state folder's"),
    Setting("token_file", _path, "the file with the token for --url"),
)
_BY_NAME: Final = {setting.name: setting for setting in TABLE}


class Rank(enum.IntEnum):
    """What counts before what."""

    FLAG = 0
    VARIABLE = 1
    FILE = 2
    DEFAULT = 3


@attrs.frozen
class Found:
    """A setting's value and where it came from."""

    value: Value
    rank: Rank
    source: str


@attrs.frozen
class Settings:
    """Every setting, resolved.

    Attributes:
        models: The tables of `[models]` by name, as they stand in the file.
        models_source: That file.
    """

    found: Mapping[str, Found]
    models: Mapping[str, object] = attrs.field(factory=dict[str, object])
    models_source: str = ""

    def text(self, name: str) -> str | None:
        """A setting that is a text."""
        value = self.found[name].value
        assert value is None or isinstance(value, str)
        return value

    def path(self, name: str) -> Path | None:
        """A setting that is a path."""
        value = self.found[name].value
        assert value is None or isinstance(value, Path)
        return value

    def number(self, name: str) -> float:
        """A setting that is a number."""
        value = self.found[name].value
        assert isinstance(value, int | float)
        return value

    def flag(self, name: str) -> bool:
        """A setting that is on or off."""
        value = self.found[name].value
        assert isinstance(value, bool)
        return value

    @property
    def state(self) -> Path:
        """The state folder."""
        path = self.path("state")
        assert path is not None
        return path


def resolve(flags: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """Every setting's value.

    Args:
        flags: What the command line says, by setting's name, and `config`, the settings
            file; None and False are not given.
        environ: The environment.

    Raises:
        ConfigError: A value is wrong, a key is unknown, or the file can't be read.
    """
    named = flags.get("config") or environ.get("KLBR_CONFIG")
    source = Path(str(named)).expanduser() if named else None
    own, models = _read(source) if source else ({}, {})
    state = _find(_BY_NAME["state"], flags, environ, own)
    if state.value is None:
        state = Found(_default_state(environ), Rank.DEFAULT, "default")
    assert isinstance(state.value, Path)
    file = own
    if not named and (path := state.value / FILE_NAME).is_file():
        source = path
        file, models = _read(path)
        if "state" in file:
            raise ConfigError(f"{path}: state can't be set in the state folder itself")
    found = {setting.name: _find(setting, flags, environ, file) for setting in TABLE}
    return Settings({**found, "state": state}, models, str(source))


def _default_state(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_STATE_HOME", "")
    home = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state"
    return home / "klbr_trio"


def _find(
    setting: Setting,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Mapping[str, Found],
) -> Found:
    given = flags.get(setting.name)
    if given is not None and given is not False:
        return _parsed(setting, given, Rank.FLAG, setting.flag)
    for variable in setting.variables:
        if environ.get(variable):
            return _parsed(setting, environ[variable], Rank.VARIABLE, variable)
    if setting.name in file:
        return file[setting.name]
    return Found(setting.default, Rank.DEFAULT, "default")


def _parsed(setting: Setting, value: object, rank: Rank, source: str) -> Found:
    try:
        return Found(setting.parse(value), rank, source)
    except ValueError as exc:
        raise ConfigError(f"{source}: {exc}, not {str(value)[:80]!r}") from exc


def _read(path: Path) -> tuple[dict[str, Found], Mapping[str, object]]:
    """What a settings file says, and its models' tables apart."""
    try:
        content = tomllib.loads(path.read_bytes().decode())
    except OSError as exc:
        raise ConfigError(f"{path}: can't be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise ConfigError(f"{path}: is not valid TOML: {exc}") from exc
    models = content.pop(MODELS, {})
    if not isinstance(models, dict):
        raise ConfigError(f"{path}: {MODELS} must be tables: [{MODELS}.NAME]")
    unknown = sorted(set(content) - set(_BY_NAME))
    if unknown:
        known = ", ".join(_BY_NAME)
        raise ConfigError(f"{path}: {unknown[0]!r} is no setting; these are: {known}, {MODELS}")
    found = {
        name: _parsed(_BY_NAME[name], value, Rank.FILE, f"{path}: {name}")
        for name, value in content.items()
    }
    return found, models


def api_key(settings: Settings, environ: Mapping[str, str]) -> Found:
    """The provider's key, and where it came from.

    Raises:
        ConfigError: Its file can't be read or is empty.
    """
    file = settings.found["api_key_file"]
    in_environment = environ.get(API_KEY_VARIABLE)
    if in_environment and file.rank > Rank.VARIABLE:
        return Found(in_environment, Rank.VARIABLE, API_KEY_VARIABLE)
    if not isinstance(file.value, Path):
        return Found(None, Rank.DEFAULT, "default")
    try:
        key = file.value.read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{file.source}: the key in {file.value} can't be read: {exc}") from exc
    if not key:
        raise ConfigError(f"{file.source}: {file.value} is empty; it should hold the key")
    return Found(key, file.rank, f"{file.source} ({file.value})")


def here(flags: Mapping[str, object]) -> Settings:
    """Every setting's value in this process's environment."""
    return resolve(flags, os.environ)
