"""The tables, and the constraints that refuse what the invariants forbid.

Each migration runs in one transaction with its record. Tables are STRICT; a state
that must not exist is refused by a CHECK, a partial unique index or a trigger, so
that not even a bug in an operation can store it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlite_utils import Migrations

if TYPE_CHECKING:
    from sqlite_utils import Database

APPLICATION_ID: Final = 0x6B6C6272
"""In the file's header, so that a foreign database is never taken for a store."""

MIGRATIONS: Final = Migrations("klbr_trio")

KNOWN: Final = ("core", "usage")
"""The names of every migration below, in order; a store that has others is newer than we are."""

_CORE: Final = (
    """
    CREATE TABLE meta (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE service (
        boot INTEGER PRIMARY KEY,
        started_ms INTEGER NOT NULL,
        recovered_ms INTEGER
    ) STRICT
    """,
    """
    CREATE TABLE session (
        session_id TEXT PRIMARY KEY,
        created_ms INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('ready', 'executing', 'waiting', 'stopped')),
        head_seq INTEGER NOT NULL CHECK (head_seq >= 0),
        hook_epoch INTEGER NOT NULL CHECK (hook_epoch >= 1),
        attempt_id TEXT,
        wait_seq INTEGER,
        wake_at_ms INTEGER,
        receipt TEXT,
        reason TEXT,
        retry_of_ms INTEGER,
        retry_n INTEGER,
        fold_epoch INTEGER NOT NULL CHECK (fold_epoch >= 0),
        fold_seq INTEGER CHECK (fold_seq <= head_seq),
        recovered_attempt TEXT,
        kernel_boot INTEGER,
        open_calls TEXT NOT NULL DEFAULT '{}',
        CHECK ((state = 'executing') = (attempt_id IS NOT NULL)),
        CHECK (state <> 'waiting' OR wait_seq IS NOT NULL),
        CHECK (state <> 'ready' OR wait_seq IS NULL),
        CHECK (state <> 'stopped' OR wait_seq IS NULL),
        CHECK ((wait_seq IS NOT NULL) = (wake_at_ms IS NOT NULL OR receipt IS NOT NULL)),
        CHECK ((retry_of_ms IS NULL) = (retry_n IS NULL)),
        CHECK ((fold_epoch = 0) = (fold_seq IS NULL)),
        CHECK (state = 'executing' OR open_calls = '{}')
    ) STRICT
    """,
    """
    CREATE TRIGGER session_goes_on BEFORE UPDATE ON session WHEN NEW.head_seq < OLD.head_seq
    BEGIN SELECT RAISE(ABORT, 'a log never gets shorter'); END
    """,
    """
    CREATE TRIGGER session_stays_stopped BEFORE UPDATE OF state ON session
    WHEN OLD.state = 'stopped' AND NEW.state <> 'stopped'
        AND NOT (NEW.state = 'ready' AND NEW.hook_epoch = OLD.hook_epoch + 1)
    BEGIN SELECT RAISE(ABORT, 'only a reset reopens a stopped session'); END
    """,
    """
    CREATE TABLE event (
        n INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL REFERENCES session (session_id),
        seq INTEGER NOT NULL CHECK (seq >= 1),
        kind TEXT NOT NULL,
        payload TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        source TEXT,
        client_request_id TEXT,
        CHECK ((kind = 'input.admitted') = (source IS NOT NULL)),
        CHECK (source IS NOT NULL OR client_request_id IS NULL)
    ) STRICT
    """,
    "CREATE UNIQUE INDEX event_seq ON event (session_id, seq)",
    """
    CREATE UNIQUE INDEX event_source_key ON event (session_id, source, client_request_id)
    WHERE client_request_id IS NOT NULL
    """,
    """
    CREATE TRIGGER event_never_changes BEFORE UPDATE ON event
    BEGIN SELECT RAISE(ABORT, 'an event never changes'); END
    """,
    """
    CREATE TRIGGER event_never_goes BEFORE DELETE ON event
    BEGIN SELECT RAISE(ABORT, 'an event is never deleted'); END
    """,
    """
    CREATE TABLE work_item (
        n INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        session_id TEXT NOT NULL REFERENCES session (session_id),
        purpose TEXT NOT NULL,
        cause_type TEXT NOT NULL,
        cause TEXT NOT NULL,
        input_seq INTEGER,
        impact TEXT NOT NULL,
        maker_kind TEXT NOT NULL,
        maker TEXT NOT NULL,
        made_ms INTEGER NOT NULL,
        created_ms INTEGER NOT NULL,
        status TEXT NOT NULL
            CHECK (status IN ('pending', 'claimed', 'completed', 'failed', 'cancelled')),
        attempt_id TEXT,
        claimed_ms INTEGER,
        outcome TEXT,
        crashes INTEGER NOT NULL DEFAULT 0 CHECK (crashes >= 0),
        retry_of_ms INTEGER,
        retry_n INTEGER,
        CHECK ((cause_type = 'input_ready') = (input_seq IS NOT NULL)),
        CHECK ((status = 'claimed') = (claimed_ms IS NOT NULL)),
        CHECK (status <> 'claimed' OR attempt_id IS NOT NULL),
        CHECK (status <> 'pending' OR attempt_id IS NULL),
        CHECK ((status IN ('completed', 'failed', 'cancelled')) = (outcome IS NOT NULL)),
        CHECK ((retry_of_ms IS NULL) = (retry_n IS NULL))
    ) STRICT
    """,
    "CREATE UNIQUE INDEX work_input ON work_item (session_id, input_seq) WHERE input_seq IS NOT NULL",
    """
    CREATE INDEX work_open ON work_item (session_id, n) WHERE status IN ('pending', 'claimed')
    """,
    "CREATE INDEX work_attempt ON work_item (attempt_id) WHERE attempt_id IS NOT NULL",
    """
    CREATE TRIGGER work_ends_once BEFORE UPDATE ON work_item
    WHEN OLD.status IN ('completed', 'failed', 'cancelled')
    BEGIN SELECT RAISE(ABORT, 'a work item ends once'); END
    """,
    """
    CREATE TRIGGER work_moves BEFORE UPDATE OF status ON work_item
    WHEN (OLD.status = 'pending' AND NEW.status IN ('completed', 'failed'))
        OR (OLD.status = 'claimed' AND NEW.status <> 'pending'
            AND NEW.attempt_id IS NOT OLD.attempt_id)
    BEGIN SELECT RAISE(ABORT, 'only the attempt that holds a work item ends it'); END
    """,
    """
    CREATE TRIGGER work_never_goes BEFORE DELETE ON work_item
    BEGIN SELECT RAISE(ABORT, 'a work item is never deleted'); END
    """,
    """
    CREATE TABLE attempt (
        id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL REFERENCES session (session_id),
        boot INTEGER NOT NULL REFERENCES service (boot),
        epoch INTEGER NOT NULL,
        started_seq INTEGER NOT NULL,
        started_ms INTEGER NOT NULL,
        release TEXT,
        ended_ms INTEGER,
        how TEXT CHECK (how IN ('completed', 'failed', 'interrupted')),
        CHECK ((ended_ms IS NULL) = (how IS NULL))
    ) STRICT
    """,
    "CREATE UNIQUE INDEX attempt_open ON attempt (session_id) WHERE ended_ms IS NULL",
    "CREATE INDEX attempt_session ON attempt (session_id, started_seq)",
    """
    CREATE TRIGGER attempt_ends_once BEFORE UPDATE ON attempt WHEN OLD.ended_ms IS NOT NULL
    BEGIN SELECT RAISE(ABORT, 'an attempt ends once'); END
    """,
    """
    CREATE TABLE deadline (
        wake_at_ms INTEGER NOT NULL,
        session_id TEXT NOT NULL UNIQUE REFERENCES session (session_id),
        PRIMARY KEY (wake_at_ms, session_id)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE frontier (
        session_id TEXT NOT NULL REFERENCES session (session_id),
        epoch INTEGER NOT NULL CHECK (epoch >= 1),
        drained_through_seq INTEGER NOT NULL,
        summary TEXT NOT NULL,
        derived_by TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        source_children TEXT NOT NULL,
        actor_testimony TEXT,
        actor_testimony_source TEXT,
        PRIMARY KEY (session_id, epoch)
    ) STRICT, WITHOUT ROWID
    """,
)


@MIGRATIONS()
def core(db: Database) -> None:
    """Sessions, their logs, work items, attempts, deadlines, folds and services."""
    for statement in _CORE:
        db.execute(statement)


@MIGRATIONS()
def usage(db: Database) -> None:
    """What each session's replies cost together, also those that were there before."""
    db.execute(
        """
        CREATE TABLE usage (
            session_id TEXT NOT NULL REFERENCES session (session_id),
            name TEXT NOT NULL,
            amount REAL NOT NULL CHECK (amount > 0),
            PRIMARY KEY (session_id, name)
        ) STRICT, WITHOUT ROWID
        """
    )
    db.execute(
        """
        INSERT INTO usage (session_id, name, amount)
        SELECT event.session_id, one.key, sum(one.value)
        FROM event, json_each(event.payload, '$.usage') AS one
        WHERE event.kind = 'reply.received' AND one.type IN ('integer', 'real') AND one.value > 0
        GROUP BY event.session_id, one.key
        """
    )
