from __future__ import annotations

import trio
import trio.testing

from klbr_trio.models.gate import Gate


async def hold(gate: Gate, session_id: str, order: list[str], until: trio.Event) -> None:
    async with gate.place(session_id):
        order.append(session_id)
        await until.wait()


async def test_no_more_are_in_than_the_limit(nursery: trio.Nursery) -> None:
    order: list[str] = []
    gate, until = Gate(2), trio.Event()
    for name in "abc":
        nursery.start_soon(hold, gate, name, order, until)
        await trio.testing.wait_all_tasks_blocked()
    assert order == ["a", "b"]
    assert repr(gate) == "<Gate 2/2 in use, 1 waiting, paused 0.0 s>"
    until.set()
    await trio.testing.wait_all_tasks_blocked()
    assert order == ["a", "b", "c"]
    assert gate.statistics().in_use == 0


async def test_sessions_take_turns() -> None:
    """One session with many requests does not hold up another with one."""
    order: list[str] = []
    gate = Gate(1)
    first = trio.Event()
    done = trio.Event()
    done.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, gate, "busy", order, first)
        await trio.testing.wait_all_tasks_blocked()
        for name in ("busy", "busy", "busy", "quiet"):
            nursery.start_soon(hold, gate, name, order, done)
            await trio.testing.wait_all_tasks_blocked()
        first.set()
    assert order == ["busy", "busy", "quiet", "busy", "busy"]


async def test_a_pause_holds_everybody(autojump_clock: trio.testing.MockClock) -> None:
    gate, started = Gate(4), autojump_clock.current_time()
    gate.pause(10)
    entered: list[float] = []

    async def enter(name: str) -> None:
        async with gate.place(name):
            entered.append(autojump_clock.current_time() - started)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(enter, "a")
        nursery.start_soon(enter, "b")
        await trio.sleep(5)
        gate.pause(20)  # longer while they wait
        gate.pause(1)  # never shorter
    assert entered == [25, 25]


async def test_a_cancel_at_any_moment_loses_no_place() -> None:
    """Cancelled while waiting, when let in at the same moment, during a pause, and inside."""
    for cancel_after in range(12):
        gate = Gate(1)
        async with trio.open_nursery() as nursery:
            holding = trio.Event()
            nursery.start_soon(hold, gate, "holder", [], holding)
            await trio.testing.wait_all_tasks_blocked()
            scopes = [trio.CancelScope() for _ in range(3)]

            async def wait(scope: trio.CancelScope, gate: Gate = gate) -> None:
                with scope:
                    async with gate.place("waiter"):
                        await trio.sleep_forever()

            for scope in scopes:
                nursery.start_soon(wait, scope)
            await trio.testing.wait_all_tasks_blocked()
            if cancel_after % 2:
                holding.set()
            for _ in range(cancel_after // 2):
                await trio.lowlevel.checkpoint()
            for scope in scopes:
                scope.cancel()
            holding.set()
        stands = gate.statistics()
        assert (stands.in_use, stands.waiting) == (0, 0)
        with trio.fail_after(1):
            async with gate.place("after"):
                pass
