"""Real faults: a store that can't be written, an attempt that nobody ended."""

from __future__ import annotations

import resource
import sqlite3
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from klbr_trio.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from contextlib import AbstractContextManager

Fault: TypeAlias = "Callable[[Path], AbstractContextManager[object]]"


@contextmanager
def locked(store_path: Path) -> Generator[sqlite3.Connection]:
    """Another process, as it were, holds the store's file; give it back by a ROLLBACK."""
    with closing(sqlite3.connect(store_path, isolation_level=None)) as conn:
        conn.execute("BEGIN IMMEDIATE")
        yield conn
        if conn.in_transaction:
            conn.execute("ROLLBACK")


@contextmanager
def full(store_path: Path) -> Generator[None]:
    """No file of this process can grow beyond the store's log as it is: the disk is full."""
    log = Path(f"{store_path}-wal").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@asynccontextmanager
async def bare_store(folder: Path) -> AsyncGenerator[Store]:
    """The lab's store without a registry: what is open when it is left stays open."""
    async with Store.open(folder / "klbr.sqlite") as store:
        yield store


async def leave_open(folder: Path, item_id: str, attempt_id: str) -> None:
    """A service claims the item, and is gone."""
    async with bare_store(folder) as store:
        assert (await store.claim_work_item(item_id, attempt_id, store.now_ms())).is_claimed
