"""The commands: their names, arguments and options, and nothing that takes time to load.

Each command loads what it does when it runs, so that help and usage errors are quick.
"""

# ruff: noqa: PLC0415 - what a command does is loaded when it runs

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from klbr_trio.cli.exits import Exit, Problem, bug, problem_of
from klbr_trio.cli.output import Output, tell

C = TypeVar("C", bound=Callable[..., Any])

_GROUP_OPTIONS: Final = ("--help", "-h", "--version")


class _ServesByDefault(click.Group):
    """Without a command, `serve` is meant."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in _GROUP_OPTIONS):
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Exit:
        """Run the command; click itself would call a closed pipe a failure."""
        try:
            return Exit(super().invoke(ctx) or 0)
        except* BrokenPipeError:
            pass
        return _unread()


def _options(*options: Callable[[C], C]) -> Callable[[C], C]:
    def add(command: C) -> C:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _option(*names: str, meaning: str, **kind: Any) -> Callable[[C], C]:  # noqa: ANN401 - click's own
    return click.option(*names, help=meaning, **kind)


_STATE = _options(
    _option("--state", metavar="DIR", meaning="Where everything lives."),
    _option(
        "--config", metavar="FILE", meaning="Settings; default: klbr.toml in the state folder."
    ),
)
_JSON = _option("--json", "as_json", is_flag=True, meaning="Print facts as JSON.")
_RAW = _option("--raw", is_flag=True, meaning="Print texts as they are, escape sequences included.")
_CLIENT = _options(
    _STATE,
    _option("--url", metavar="URL", meaning="A service to speak to: http://HOST:PORT."),
    _option("--token-file", metavar="FILE", meaning="The file with the token for --url."),
)
_SERVICE = _options(
    _option("--listen", metavar="HOST:PORT", meaning="TCP address; port 0 takes a free one."),
    _option("--model-url", metavar="URL", meaning="The model's API base; also OPENAI_BASE_URL."),
    _option("--model", metavar="NAME", meaning="The model's name, or one of [models]."),
    _option("--fallbacks", metavar="NAMES", meaning="Of [models], asked while it is unavailable."),
    _option("--api-key-file", metavar="FILE", meaning="The key's file; also OPENAI_API_KEY."),
    _option("--provider", metavar="demo", meaning="The scripted provider instead of a model."),
    _option("--behavior", metavar="DIR", meaning="The behaviour to publish and run."),
    _option("--soul", metavar="TEXT", meaning="Who this agent is."),
    _option("--drain-seconds", metavar="S", meaning="How long a turn may go on at shutdown."),
    _option("--first-token-seconds", metavar="S", meaning="The model's silence before its answer."),
    _option("--stall-seconds", metavar="S", meaning="The model's silence during its answer."),
    _option("--sandbox", metavar="LEVEL", meaning="The least around kernels: full, reduced, none."),
    _option("--network", metavar="REACH", meaning="What kernels can reach: off, public, open."),
    _option("--network-domains", metavar="NAMES", meaning="The only names of public, by commas."),
    _option("--kernel-memory-mb", metavar="N", meaning="Memory of a kernel with all it starts."),
    _option("--kernel-process-memory-mb", metavar="N", meaning="Memory of one process."),
    _option("--kernel-processes", metavar="N", meaning="Processes and threads of a kernel."),
    _option("--kernel-file-mb", metavar="N", meaning="Size of one file."),
    _option("--kernel-open-files", metavar="N", meaning="Open files of one process."),
    _option("--kernel-disk-mb", metavar="N", meaning="What a workspace holds."),
    _option("--kernel-disk-files", metavar="N", meaning="Files in a workspace."),
    _option("--kernel-free-mb", metavar="N", meaning="What stays free on the disk."),
    _option("--kernel-temporary-mb", metavar="N", meaning="A kernel's own /tmp."),
    _option("--kernel-idle-seconds", metavar="S", meaning="When an idle kernel is let go."),
    _option("--kernels", metavar="N", meaning="Kernels kept for sessions that do not run."),
    _option("--no-auth", is_flag=True, meaning="No token; loopback only."),
    _option("--tls-cert", metavar="FILE", meaning="Certificate chain; needed beyond loopback."),
    _option("--tls-key", metavar="FILE", meaning="Its key, a file of this user alone."),
    _option("--names", metavar="NAMES", meaning="Host names that clients may use, by commas."),
    _option("--log-level", metavar="LEVEL", meaning="debug, info, warning or error."),
)
_SESSION = click.argument("session")


_EPILOG: Final = """\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 conflict,
5 the turn failed, 6 not authorised, 7 service unreachable, 8 a check failed,
75 try again, 78 configuration, 130 interrupted.
"""


@click.group(
    cls=_ServesByDefault,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="klbr_trio", prog_name="klbr")
def app() -> None:
    """Durable agents on one machine. Without a command: serve."""


@app.command()
@_STATE
@_SERVICE
def serve(**flags: Any) -> Exit:  # noqa: ANN401 - click's own
    """Run the service."""
    from klbr_trio.cli.serving import serve as run

    return run(flags)


@app.command()
@_SESSION
@click.argument("text", required=False)
@_option("--wait/--no-wait", default=True, meaning="Wait for the answer (the default).")
@_option("--key", metavar="KEY", meaning="Makes it idempotent: sent again, it is stored once.")
@_option("--source", metavar="NAME", default="cli", show_default=True, meaning="Who sends it.")
@_JSON
@_RAW
@_CLIENT
def send(session: str, text: str | None, **flags: Any) -> Exit:  # noqa: ANN401
    """Send TEXT (or stdin, also as -) to SESSION and print what is said in answer."""
    from klbr_trio.cli.sending import send as run

    return run(session, text, output=_output(flags), flags=flags)


@app.command()
@_SESSION
@_option(
    "--last",
    metavar="N",
    type=click.IntRange(0, 1000),
    default=20,
    show_default=True,
    meaning="Begin with so many events before now.",
)
@_JSON
@_RAW
@_CLIENT
def watch(session: str, last: int, **flags: Any) -> Exit:  # noqa: ANN401
    """Show SESSION as it happens; --json prints the service's frames."""
    from klbr_trio.cli.watching import watch as run

    return run(session, last=last, output=_output(flags), flags=flags)


@app.command()
@click.argument("session", required=False)
@_JSON
@_CLIENT
def status(session: str | None, **flags: Any) -> Exit:  # noqa: ANN401
    """Show SESSION's state, or that of all sessions."""
    from klbr_trio.cli.operating import status as run

    return run(session, output=_output(flags), flags=flags)


@app.command()
@_SESSION
@_option("--before", metavar="SEQ", type=click.IntRange(1), meaning="Only events before that one.")
@_option(
    "--limit",
    metavar="N",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    meaning="So many events, the newest ones.",
)
@_option("--all", "everything", is_flag=True, meaning="All events.")
@_JSON
@_RAW
@_CLIENT
def history(session: str, **flags: Any) -> Exit:  # noqa: ANN401
    """Show SESSION's log, oldest first."""
    from klbr_trio.cli.watching import history as run

    before, limit = flags.pop("before"), flags.pop("limit")
    limit = None if flags.pop("everything") else limit
    return run(session, before=before, limit=limit, output=_output(flags), flags=flags)


@app.command()
@_SESSION
@_JSON
@_CLIENT
def stop(session: str, **flags: Any) -> Exit:  # noqa: ANN401
    """Stop SESSION with everything it started, until it is reset."""
    from klbr_trio.cli.operating import stop as run

    return run(session, output=_output(flags), flags=flags)


@app.command()
@_SESSION
@_JSON
@_CLIENT
def interrupt(session: str, **flags: Any) -> Exit:  # noqa: ANN401
    """End the cell that SESSION runs; its kernel and its turn go on."""
    from klbr_trio.cli.operating import interrupt as run

    return run(session, output=_output(flags), flags=flags)


@app.command()
@_SESSION
@_JSON
@_CLIENT
def reset(session: str, **flags: Any) -> Exit:  # noqa: ANN401
    """Reopen a stopped SESSION; give any other a fresh kernel."""
    from klbr_trio.cli.operating import reset as run

    return run(session, output=_output(flags), flags=flags)


@app.command()
@_option("--behavior", metavar="DIR", meaning="Show this behaviour instead of the one that ships.")
@_option("--keep", is_flag=True, meaning="Keep the temporary folder.")
@_JSON
def demo(behavior: str | None, **flags: Any) -> Exit:  # noqa: ANN401
    """Show a service at work, with a script for a model, and check every claim."""
    from klbr_trio.cli.demo.story import demo as run

    return run(behavior=behavior, keep=flags.pop("keep"), output=_output(flags))


@app.command()
@_JSON
@_SERVICE
@_STATE
def doctor(**flags: Any) -> Exit:  # noqa: ANN401
    """Find out what this machine has for kernels, and ask each model a short question."""
    from klbr_trio.cli.doctor import doctor as run

    return run(output=_output(flags), flags=flags)


@app.group()
def release() -> None:
    """Behaviours as the service runs them."""


@release.command()
@click.argument("folder", required=False)
@_JSON
@_STATE
def publish(folder: str | None, **flags: Any) -> Exit:  # noqa: ANN401
    """Publish a behaviour FOLDER (default: the configured one) and print its digest."""
    from klbr_trio.cli.checking import publish as run

    return run(folder, output=_output(flags), flags=flags)


@app.command()
@_JSON
@_STATE
def verify(**flags: Any) -> Exit:  # noqa: ANN401
    """Check the state folder's store and releases; also beside a running service."""
    from klbr_trio.cli.checking import verify as run

    return run(output=_output(flags), flags=flags)


@app.command()
@_JSON
@_SERVICE
@_CLIENT
def config(**flags: Any) -> Exit:  # noqa: ANN401
    """Show every setting, its value and where it came from."""
    from klbr_trio.cli.looking import show_config as run

    return run(output=_output(flags), flags=flags)


@app.group()
def token() -> None:
    """The service's tokens."""


@token.command()
@_JSON
@_STATE
def show(**flags: Any) -> Exit:  # noqa: ANN401
    """Print the token."""
    from klbr_trio.cli.tokens import show as run

    return run(output=_output(flags), flags=flags)


_READ_ONLY = _option("--read-only", is_flag=True, meaning="For tokens that may look, no more.")


@token.command()
@_READ_ONLY
@_JSON
@_STATE
def new(**flags: Any) -> Exit:  # noqa: ANN401
    """Print one more token; a running service takes it at once."""
    from klbr_trio.cli.tokens import new as run

    return run(read_only=flags.pop("read_only"), output=_output(flags), flags=flags)


@token.command()
@_READ_ONLY
@_JSON
@_STATE
def rotate(**flags: Any) -> Exit:  # noqa: ANN401
    """Print a new token; the old one counts no more, and who came with it is sent away."""
    from klbr_trio.cli.tokens import rotate as run

    return run(read_only=flags.pop("read_only"), output=_output(flags), flags=flags)


def _output(flags: dict[str, Any]) -> Output:
    """How to print; the options that say so are taken out of `flags`."""
    return Output(as_json=flags.pop("as_json"), raw=flags.pop("raw", False))


def main(arguments: Sequence[str]) -> Exit:
    """Run the command that the arguments name; the exit code to end with."""
    try:
        return Exit(app.main(list(arguments), prog_name="klbr", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as exc:
        click.echo(exc.format_message(), err=True)
        return Exit.USAGE
    except click.ClickException as exc:
        return _usage(exc)
    except click.Abort:
        return _end(Problem(Exit.INTERRUPTED, "interrupted"))
    except (Exception, BaseExceptionGroup) as exc:  # noqa: BLE001 - the last boundary: one line
        return _end(problem_of(exc) or bug(exc))


def _usage(exc: click.ClickException) -> Exit:
    context = getattr(exc, "ctx", None)
    path = "klbr" if context is None else context.command_path
    what = " ".join(exc.format_message().split()).rstrip(".")
    tell(f"{what}; see: {path} --help")
    return Exit.USAGE


def _end(problem: Problem) -> Exit:
    tell(str(problem))
    return problem.code


def _unread() -> Exit:
    """Whoever reads our output has seen enough."""
    # Python would complain when it flushes stdout at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.DONE
