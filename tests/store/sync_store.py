"""The store's operations without an event loop: each is one transaction in memory."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, TypeVar

import attrs
from sqlite_utils import Database

from klbr_trio.store import CommitPoint
from klbr_trio.store.check import check_connection
from klbr_trio.store.reader import Reader
from klbr_trio.store.schema import APPLICATION_ID, MIGRATIONS
from klbr_trio.store.tx import Tx

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def _connect() -> sqlite3.Connection:
    conn = sqlite3.connect(":memory:", isolation_level=None, cached_statements=256)
    conn.execute("PRAGMA foreign_keys = ON")
    conn.execute("PRAGMA recursive_triggers = ON")
    conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    MIGRATIONS.apply(Database(conn, execute_plugins=False))
    return conn


@attrs.define(eq=False)
class SyncStore:
    """A store in memory; `reopen` is what a restart of the service is to it."""

    now_ms: int = 1_000_000
    boot: int = 0
    conn: sqlite3.Connection = attrs.field(factory=_connect)

    def __attrs_post_init__(self) -> None:
        self.reopen()

    @property
    def reader(self) -> Reader:
        return Reader(self.conn)

    def do(self, operation: Callable[[Tx], T]) -> T:
        """The operation's answer; what it raises has changed nothing."""
        self.conn.execute("BEGIN IMMEDIATE")
        try:
            answer = operation(Tx(self.conn, self.now_ms, self.boot, CommitPoint.ADMIT))
        except BaseException:
            self.conn.execute("ROLLBACK")
            raise
        self.conn.execute("COMMIT")
        return answer

    def reopen(self) -> None:
        """The next service has opened the store."""
        self.conn.execute("INSERT INTO service (started_ms) VALUES (?)", (self.now_ms,))
        [(self.boot,)] = self.conn.execute("SELECT max(boot) FROM service").fetchall()

    def check(self) -> list[str]:
        """What is wrong with it."""
        return check_connection(self.conn)

    def close(self) -> None:
        self.conn.close()
