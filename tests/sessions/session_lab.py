"""What the session tests share: a real store, registry, kernel and HTTP provider, put together."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio
import trio.testing
from fakes.provider import Answers, ScriptedProvider, open_provider, text_reply

from klbr_trio.domain.work import (
    ConsequenceMetadata,
    MaintenanceReady,
    Provenance,
    WorkItem,
)
from klbr_trio.errors import sole
from klbr_trio.kernel import WorkerConfig
from klbr_trio.models import LlmClient, ModelConfig, ModelsConfig
from klbr_trio.release import Release
from klbr_trio.sessions.driver import drive
from klbr_trio.sessions.groups import ServiceTaskGroup
from klbr_trio.sessions.ingress import SourceRef, admit_input
from klbr_trio.sessions.recovery import recover
from klbr_trio.sessions.registry import RecoveryObservationPolicy, SessionRegistry
from klbr_trio.sessions.runner import Agent, trigger_session_turn
from klbr_trio.store import Admission, Store, check
from klbr_trio.wire.records import decode_event
from klbr_trio.wire.server import LiveChunk, LiveMessage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from klbr_trio.domain.events import Event
    from klbr_trio.domain.session import SessionState
    from klbr_trio.sessions.entry import SessionEntry

REPO = Path(__file__).parents[2]
CONFIG = WorkerConfig.source_tree(REPO)
CEILING_S = 30.0
"""Nothing waited for here takes a second; a loaded machine may take its time."""

SID = "a-session"
SPEAK = "from klbr import local, runtime\nawait local.send({!r})\nawait runtime.done()"
WAIT = "from klbr import runtime\nawait runtime.wait(seconds={}, reason={!r})"
DONE = "from klbr import runtime\nawait runtime.done()"
# A cell that is known to run, and then runs for ever.
STUCK = "print('begun', flush=True)\nimport asyncio\nawait asyncio.sleep(1000)"


NOTHING: Answers = (text_reply("(nothing)"),)


class FakeClock:
    """A clock that stands until it is moved, and counts how often it is looked at."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.time_ms = now_ms
        self.looks = 0
        self.sleepers = 0
        self._moved = trio.Event()

    def now_ms(self) -> int:
        self.looks += 1
        return self.time_ms

    async def sleep_until_ms(self, wake_at_ms: int) -> None:
        self.sleepers += 1
        try:
            while self.time_ms < wake_at_ms:
                await self._moved.wait()
        finally:
            self.sleepers -= 1

    def move(self, to_ms: int) -> None:
        self.time_ms = to_ms
        self._moved.set()
        self._moved = trio.Event()


@attrs.define(eq=False)
class Live:
    """What was streamed, as it comes."""

    messages: list[LiveMessage] = attrs.field(factory=list)
    _news: trio.Event = attrs.field(factory=trio.Event)

    def take(self, message: LiveMessage) -> None:
        self.messages.append(message)
        self._news.set()
        self._news = trio.Event()

    async def until(self, true: Callable[[], bool]) -> None:
        with trio.fail_after(CEILING_S):
            while not true():
                await self._news.wait()

    def text(self, lane: str) -> str:
        return "".join(
            one.delta for one in self.messages if isinstance(one, LiveChunk) and one.lane == lane
        )


@attrs.define(eq=False)
class Lab:
    """A registry with all that a turn needs."""

    folder: Path
    store: Store
    registry: SessionRegistry
    provider: ScriptedProvider
    llm: LlmClient
    release: Release
    live: Live = attrs.field(factory=Live)

    # Doing

    async def entry(self, sid: str = SID) -> SessionEntry:
        return await self.registry.get_or_open(sid, self.release)

    async def admit(self, text: str = "hi", sid: str = SID, key: str | None = None) -> Admission:
        ref = SourceRef.from_v2_input(sid, "operator", text, key)
        return await admit_input(self.registry, ref.session_id, ref)

    async def trigger(self, sid: str = SID, release: Release | None = None) -> bool:
        return await trigger_session_turn(
            self.registry, self.llm, sid, release or self.release, self.live.take
        )

    async def turn(self, text: str = "hi", sid: str = SID) -> list[Event]:
        """An input, and all that runs for it; the events since."""
        head = self.store.head(sid)
        await self.admit(text, sid)
        assert await self.trigger(sid)
        await self.idle(sid)
        return await self.store.history(sid, head, 10_000)

    async def maintenance(self, item_id: str = "upkeep", sid: str = SID) -> WorkItem:
        await self.store.ensure_session(sid)
        item = a_maintenance_item(item_id, sid)
        assert await self.store.insert_work_item(item)
        return item

    async def drive(
        self, llm: LlmClient | None = None, *, model: bool = True, max_runners: int = 100
    ) -> None:
        """The service's own tasks, without its sockets."""
        agent = Agent(llm or self.llm, self.release, None, self.live.take) if model else None
        start = self.registry.start_service_task
        await start(ServiceTaskGroup.DRIVER, drive, self.registry, agent, max_runners)
        await start(ServiceTaskGroup.RECOVERY, recover, self.registry)

    # Waiting

    async def idle(self, sid: str = SID) -> None:
        """Nothing of the session runs."""
        entry = self.registry.get(sid)
        with trio.fail_after(CEILING_S):
            while entry is not None and entry.runners.active is not None:
                await entry.runners.active.done.wait()

    async def until(self, true: Callable[[], bool], sid: str = SID) -> None:
        """The next commit of the session after which this holds, or now."""
        with trio.fail_after(CEILING_S):
            while True:
                ticket = self.store.ticket(sid)
                if true():
                    return
                await ticket.wait()

    async def event(self, kind: str, number: int = 1, sid: str = SID) -> Event:
        """The nth event of that kind, once it is there."""
        found: list[Event] = []

        def seen() -> bool:
            found[:] = [event for event in self.log(sid) if event.kind == kind]
            return len(found) >= number

        await self.until(seen, sid)
        return found[number - 1]

    async def cell_begun(self) -> None:
        """A cell of `STUCK` runs."""
        await self.live.until(lambda: "begun" in self.live.text("output"))

    async def driver_backs_off(self) -> None:
        """The driver has found that nothing can be written."""
        with trio.fail_after(CEILING_S):
            while self.store.trouble is None or self.registry.running:
                await trio.testing.wait_all_tasks_blocked(0.01)

    # Looking

    def log(self, sid: str = SID) -> list[Event]:
        return [
            decode_event(row.seq, row.session_id, row.kind, row.payload, row.created_ms)
            for row in self.store.event_rows(sid, 0, 100_000)
        ]

    def kinds(self, sid: str = SID) -> list[str]:
        return [event.kind for event in self.log(sid)]

    def said(self, sid: str = SID) -> list[str]:
        return [event.payload["text"] for event in self.log(sid) if event.kind == "local.sent"]

    def of(self, kind: str, sid: str = SID) -> list[dict[str, Any]]:
        return [event.payload for event in self.log(sid) if event.kind == kind]

    def messages(self, request: int = -1) -> list[dict[str, Any]]:
        """The messages of a request, as the provider got them."""
        found: list[dict[str, Any]] = self.provider.requests[request].body["messages"]
        return found

    def processes(self, sid: str = SID) -> list[int]:
        return processes_of(self.folder / "workspaces" / sid)


def a_maintenance_item(item_id: str, sid: str = SID) -> WorkItem:
    return WorkItem.new(
        item_id,
        "tidy up",
        MaintenanceReady(item_id, "tidy the notes"),
        ConsequenceMetadata(),
        Provenance.agent("a-test", 1000),
        1000,
    ).with_session(sid)


def client(url: str, **settings: Any) -> LlmClient:
    return LlmClient(ModelsConfig(ModelConfig(url, "a-model", **settings)))


def publish(folder: Path, settings: str = "", prompt: str = "Be brief.") -> Release:
    """A release with these settings."""
    source = folder / f"behavior-{abs(hash((settings, prompt)))}"
    source.mkdir(parents=True, exist_ok=True)
    (source / "behavior.toml").write_text(f'name = "test"\n{settings}\n')
    (source / "prompt.md").write_text(prompt)
    return Release.publish(source, folder / "releases")


@asynccontextmanager
async def open_lab(
    folder: Path,
    answers: Answers = NOTHING,
    *,
    settings: str = "",
    clock: FakeClock | None = None,
    llm: LlmClient | None = None,
    config: WorkerConfig = CONFIG,
    policy: RecoveryObservationPolicy | None = None,
    on_commit: Callable[[str], None] | None = None,
    busy_s: float = 5.0,
    resting_kernels: int = 32,
    is_sound: bool = True,
) -> AsyncGenerator[Lab]:
    """A lab over the store in `folder`; when it is left nothing lives, and the store is sound.

    Unless the test has damaged it, which then has to be found.
    """
    try:
        async with AsyncExitStack() as stack:
            provider = await stack.enter_async_context(open_provider(answers))
            times: dict[str, Any] = {} if clock is None else {"now_ms": lambda: clock.time_ms}
            store = await stack.enter_async_context(
                Store.open(folder / "klbr.sqlite", on_commit=on_commit, busy_s=busy_s, **times)
            )
            registry = await stack.enter_async_context(
                SessionRegistry.open(
                    store, config, policy, clock=clock, resting_kernels=resting_kernels
                )
            )
            release = publish(folder, settings)
            lab = Lab(folder, store, registry, provider, llm or client(provider.url), release)
            yield lab
            with trio.fail_after(CEILING_S):
                await registry.shutdown_all()
            assert (await check(store) == []) == is_sound
    except BaseExceptionGroup as group:
        raise sole(group) from None
    workspaces = folder / "workspaces"
    for workspace in workspaces.iterdir() if workspaces.exists() else ():
        assert processes_of(workspace) == [], f"alive: {workspace.name}"


def processes_of(workspace: Path) -> list[int]:
    """Living processes of the kernel of this workspace, and what they have started."""
    home = f"HOME={workspace}".encode()
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and home in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def state_of(entry: SessionEntry) -> SessionState:
    """The state as it is now: a checker takes an attribute for what it was when it was compared."""
    return entry.state


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def in_order(kinds: Sequence[str], *wanted: str) -> bool:
    """Whether these kinds come in this order, with anything between."""
    rest = iter(kinds)
    return all(kind in rest for kind in wanted)
