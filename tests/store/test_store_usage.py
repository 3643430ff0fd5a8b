"""What a session's replies cost: counted in their commit, also for stores from before it was."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from store_lab import SESSION, ask, begin, complete, finish

from klbr_trio.domain.events import ReplyReceived
from klbr_trio.store import Store, check, check_file

if TYPE_CHECKING:
    from pathlib import Path


def usage(store: Store, session: str = SESSION) -> dict[str, float]:
    status = store.status(session)
    assert status is not None
    return status.usage


async def two_replies(store: Store, session: str = SESSION) -> None:
    turn = await begin(store, session=session)
    await ask(store, turn, "a")
    await finish(store, turn, "a")
    costly = {"total_tokens": 4, "cost": 0.25, "strange": "x", "nothing": 0}
    received = ReplyReceived(turn.attempt_id, 2, "m", "stop", costly, None)
    await store.reply(turn, received, scratchpad=None, calls=[], refused=[])
    await complete(store, turn)


async def test_it_is_summed_a_session(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        await store.ensure_session("silent")
        for _ in range(2):
            await two_replies(store)
        await two_replies(store, "other")
        assert usage(store) == {"total_tokens": 14, "cost": 0.5}
        assert usage(store, "other") == {"total_tokens": 7, "cost": 0.25}
        assert usage(store, "silent") == {}
        assert [one.usage for one in store.statuses("", 10)] == [
            usage(store, "other"), usage(store), {},
        ]  # fmt: skip
        assert await check(store) == []


async def test_a_store_from_before_it_was_counted_is_counted_when_it_is_opened(
    store_path: Path,
) -> None:
    async with Store.open(store_path) as store:
        await two_replies(store)
        counted = usage(store)
    with closing(sqlite3.connect(store_path, isolation_level=None)) as conn:
        conn.execute("DROP TABLE usage")
        conn.execute("DELETE FROM _sqlite_migrations WHERE name = 'usage'")
        conn.execute("PRAGMA user_version = 1")
    async with Store.open(store_path) as store:
        assert usage(store) == counted
    assert check_file(store_path) == []
