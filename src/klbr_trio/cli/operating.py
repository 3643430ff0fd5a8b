"""`klbr status`, `klbr stop` and `klbr reset`: one question or command, one answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from klbr_trio.cli.exits import Exit, Problem
from klbr_trio.cli.persist import once
from klbr_trio.cli.records import moment, span
from klbr_trio.cli.settings import here
from klbr_trio.daemon.folder import StateFolder
from klbr_trio.daemon.private import read_private
from klbr_trio.domain.clock import wall_now_ms
from klbr_trio.domain.ids import parse_session_id
from klbr_trio.errors import ConfigError
from klbr_trio.wire.client import (
    PAGE_MAX,
    GetSessionStatus,
    Interrupt,
    ListSessions,
    ResetKernel,
    Stop,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klbr_trio.cli.link import Link
    from klbr_trio.cli.output import Output
    from klbr_trio.cli.settings import Settings


_LONGEST: Final = 65_536


def status(session: str | None, *, output: Output, flags: Mapping[str, object]) -> Exit:
    """Show one session's state, or that of all."""
    settings = here(flags)
    if session is None:
        sessions = trio.run(once, settings, _all_sessions)
        sandbox = _sandbox(settings)
        lines = [_line(each) for each in sessions] or ["no sessions yet"]
        if sandbox is not None:
            output.note(f"sandbox: {sandbox}")
        output.fact({"sessions": sessions, "sandbox": sandbox}, "\n".join(lines))
        return Exit.DONE
    question = GetSessionStatus(session_id=parse_session_id(session))

    async def ask(link: Link) -> dict[str, Any]:
        return await link.ask(question)

    found = trio.run(once, settings, ask)
    output.fact(_facts(found), "\n".join(_lines(found)))
    return Exit.DONE


def _sandbox(settings: Settings) -> str | None:
    """What stands around the kernels of the state folder's service, as it says itself."""
    if settings.text("url") is not None:
        return None
    try:
        said = read_private(StateFolder(settings.state.absolute()).sandbox, _LONGEST)
    except (OSError, ConfigError):
        return None
    return said.decode(errors="replace").strip()


async def _all_sessions(link: Link) -> list[dict[str, Any]]:
    sessions: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page = await link.ask(ListSessions(after=after, limit=PAGE_MAX))
        sessions += [_facts(each) for each in page["sessions"]]
        after = page.get("next")
        if after is None:
            return sessions


def _facts(frame: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in frame.items() if name not in ("type", "request_id")}


def _line(found: Mapping[str, Any]) -> str:
    pending = f", {found['pending']} pending" if found["pending"] else ""
    return f"{found['session_id']}  {_state(found)}{pending}"


def _state(found: Mapping[str, Any]) -> str:
    wake_at_ms = found.get("wake_at_ms")
    if wake_at_ms is None:
        return str(found["state"])
    reason = f": {found['reason']}" if found.get("reason") else ""
    left_ms = wake_at_ms - wall_now_ms()
    when = f"in {span(left_ms)}" if left_ms > 0 else "now"
    return f"{found['state']}, wakes at {moment(wake_at_ms)} ({when}){reason}"


def _lines(found: Mapping[str, Any]) -> list[str]:
    lines = [
        f"session   {found['session_id']}",
        f"state     {_state(found)}",
        f"events    {found['head_seq']}",
        f"pending   {found['pending']}",
    ]
    if usage := found.get("usage"):
        lines.append(f"usage     {_usage(usage)}")
    for name, label in (
        ("attempt_id", "attempt"),
        ("fold_seq", "folded to"),
        ("release", "release"),
    ):
        if found.get(name) is not None:
            lines.append(f"{label:<10}{found[name]}")
    return lines


def _usage(usage: Mapping[str, float]) -> str:
    """What the session's replies cost together; a price only where a model has one."""
    cost = f", ${usage['cost']:.4f}" if "cost" in usage else ""
    return (
        f"{usage.get('prompt_tokens', 0):,} tokens read, "
        f"{usage.get('completion_tokens', 0):,} written{cost}"
    )


def stop(session: str, *, output: Output, flags: Mapping[str, object]) -> Exit:
    """Stop a session with everything it started, until the operator resets it."""
    return _command(Stop(session_id=parse_session_id(session)), "is stopped", output, flags)


def interrupt(session: str, *, output: Output, flags: Mapping[str, object]) -> Exit:
    """End the cell that a session runs; its kernel and its turn go on."""
    done = "goes on; the cell it ran has ended"
    return _command(Interrupt(session_id=parse_session_id(session)), done, output, flags)


def reset(session: str, *, output: Output, flags: Mapping[str, object]) -> Exit:
    """Reopen a stopped session, or give any other a fresh kernel."""
    done = "is ready, with a fresh kernel"
    return _command(ResetKernel(session_id=parse_session_id(session)), done, output, flags)


def _command(
    message: Stop | ResetKernel | Interrupt, done: str, output: Output, flags: Mapping[str, object]
) -> Exit:
    async def ask(link: Link) -> dict[str, Any]:
        return await link.ask(message)

    answer = trio.run(once, here(flags), ask)
    if answer["success"] or output.as_json:
        receipt = f" ({answer['message']})" if answer.get("message") else ""
        output.fact(_facts(answer), f"session {message.session_id} {done}{receipt}")
    if not answer["success"]:
        raise Problem(Exit.FAILED, f"{message.type} of {message.session_id}: {answer['message']}")
    return Exit.DONE
