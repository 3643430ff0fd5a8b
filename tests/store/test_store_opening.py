"""Opening: one owner, a file that is ours or refused untouched, one more boot each time."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlite_utils import Database, Migrations
from store_lab import SESSION, admit, raw, sound

from klbr_trio.errors import (
    StoreBroken,
    StoreForeign,
    StoreLocked,
    StoreTooNew,
    StoreUnavailable,
    UnknownSession,
)
from klbr_trio.store import Store, lock
from klbr_trio.store.schema import APPLICATION_ID, KNOWN, MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Generator


async def opens(path: Path) -> int:
    async with Store.open(path, busy_s=0.2) as store:
        return store.boot


def listing(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_a_new_store_is_private_and_every_opening_is_a_boot(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "klbr.sqlite"
    old = os.umask(0o022)
    try:
        async with Store.open(path) as store:
            await admit(store)
            assert store.boot == 1
            assert store.path == path
            for suffix in ("", "-wal", "-shm", ".lock"):
                assert mode(path.with_name(path.name + suffix)) == 0o600
            assert mode(path.parent) == 0o700
    finally:
        os.umask(old)
    assert await opens(path) == 2
    async with Store.open(str(path)) as store:
        assert store.boot == 3
        assert store.head(SESSION) == 1
        await sound(store)


async def test_a_store_has_one_generation_for_life(store_path: Path) -> None:
    found = []
    for _ in range(2):
        await opens(store_path)
        with raw(store_path) as conn:
            found.append(conn.execute("SELECT value FROM meta").fetchall())
    assert len(found[0]) == 1
    assert found[0] == found[1]


async def test_the_pragmas_are_what_durability_needs(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        wanted = {
            "journal_mode": "wal",
            "synchronous": 2,
            "foreign_keys": 1,
            "recursive_triggers": 1,
            "busy_timeout": 0,
            "application_id": APPLICATION_ID,
            "user_version": len(KNOWN),
        }
        conn = store._writer._conn
        assert {name: conn.execute(f"PRAGMA {name}").fetchone()[0] for name in wanted} == wanted


# One owner


async def test_a_second_opening_in_the_process_is_told_who_has_it(store_path: Path) -> None:
    async with Store.open(store_path) as store:
        with pytest.raises(StoreLocked, match=f"in use by process {os.getpid()} "):
            await opens(store_path)
        await admit(store)
        await sound(store)
    assert await opens(store_path) == 2


OWNER = """
import sys, trio
from klbr_trio.store import Store
async def main():
    async with Store.open(sys.argv[1]):
        print("open", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
trio.run(main)
"""


@contextlib.contextmanager
def other_owner(path: Path) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_another_process_that_has_it_is_named_and_its_end_frees_it(store_path: Path) -> None:
    import trio  # noqa: PLC0415

    lock_file = store_path.with_name(store_path.name + ".lock")
    with other_owner(store_path) as process:
        with pytest.raises(StoreLocked, match=f"in use by process {process.pid} "):
            trio.run(opens, store_path)
        assert lock.holder(lock_file) == lock.Holder(process.pid)
        process.kill()
        process.wait()
        assert lock.holder(lock_file) is None
        assert trio.run(opens, store_path) == 2


def test_asking_for_the_holder_takes_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert lock.holder(path) is None
    assert not path.exists()
    with lock.hold(path):
        assert lock.holder(path) == lock.Holder(os.getpid())
    assert lock.holder(path) is None


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", '{"pid":"7"}', "null"])
def test_a_holder_that_did_not_say_who_it_is_is_another_process(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lock"
    with lock.hold(path):
        path.write_text(text)
        assert lock.holder(path) == lock.Holder(None)
        with pytest.raises(StoreLocked, match="another process"), lock.hold(path):
            pass


def test_what_can_not_be_locked(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "link", tmp_path, tmp_path / "no" / "folder", Path("/dev/full")):
        assert lock.holder(path) is None
    for path in (tmp_path / "link", tmp_path, tmp_path / "no" / "folder"):
        with pytest.raises(StoreForeign, match="can't be opened"), lock.hold(path):
            pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_without_room_for_our_name_is_no_lock() -> None:
    with pytest.raises(StoreUnavailable, match="can't be written"), lock.hold(Path("/dev/full")):
        pass


def test_a_file_that_can_not_be_locked(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open("rb") as read_only:
        with pytest.raises(StoreForeign, match="can't be locked: Bad file descriptor"):
            lock._take(read_only.fileno(), tmp_path / "lock")


async def test_the_lock_may_lie_elsewhere(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "a.sqlite", lock_path=tmp_path / "lock"):
        assert lock.holder(tmp_path / "lock") == lock.Holder(os.getpid())
        assert not (tmp_path / "a.sqlite.lock").exists()


# What is not ours


def text_file(path: Path) -> None:
    path.write_text("dear diary, " * 100)


def short_file(path: Path) -> None:
    path.write_bytes(b"SQLite")


def other_database(path: Path) -> None:
    with raw(path) as conn:
        conn.execute("CREATE TABLE notes (text)")


def other_program_s_database(path: Path) -> None:
    other_database(path)
    with raw(path) as conn:
        conn.execute("PRAGMA application_id = 7")


def broken_database(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 8000)


def folder(path: Path) -> None:
    path.mkdir()


def link(path: Path) -> None:
    (path.parent / "target").write_bytes(b"")
    path.symlink_to(path.parent / "target")


def dangling_link(path: Path) -> None:
    path.symlink_to(path.parent / "target")


def fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (text_file, "is not a klbr_trio store; nothing in it was changed"),
        (short_file, "is not a klbr_trio store"),
        (other_database, "database of another program"),
        (other_program_s_database, "database of another program"),
        (broken_database, "is not a readable database"),
        (folder, "is not a plain file"),
        (link, "is a symbolic link"),
        (dangling_link, "is a symbolic link"),
        (fifo, "is not a plain file"),
    ],
)
async def test_what_is_no_store_is_refused_and_not_touched(
    store_path: Path, make: object, why: str
) -> None:
    assert callable(make)
    make(store_path)
    before = listing(store_path.parent)
    with pytest.raises(StoreForeign, match=why):
        await opens(store_path)
    after = listing(store_path.parent)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) <= {f"{store_path.name}.lock"}


@pytest.mark.parametrize(
    "path", ["/proc/klbr/klbr.sqlite", "/proc/self/klbr.sqlite", "/dev/null/klbr.sqlite"]
)
async def test_a_folder_that_can_not_be_written(path: str) -> None:
    with pytest.raises(StoreForeign, match="can't be"):
        await opens(Path(path))


READ_ONLY = """
import os, sys, trio
from klbr_trio.errors import StoreForeign, StoreUnavailable
from klbr_trio.store import Store
os.setuid(65534)
async def main():
    async with Store.open(sys.argv[1]):
        print("opened")
try:
    trio.run(main)
except (StoreForeign, StoreUnavailable) as exc:
    print(type(exc).__name__, exc)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody who may not write")
def test_somebody_who_may_not_write_there_is_told_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    readable = all(parent.stat().st_mode & 0o005 == 0o005 for parent in tmp_path.parents)
    if not readable:  # pytest's own folders are private
        for parent in tmp_path.parents[:2]:
            parent.chmod(0o755)
    run = subprocess.run(
        [sys.executable, "-c", READ_ONLY, tmp_path / "klbr.sqlite"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.startswith("StoreForeign")
    assert "Permission denied" in run.stdout
    assert list(tmp_path.iterdir()) == []


async def test_a_path_that_sqlite_finds_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreForeign, match="unable to open database file"):
        await opens(tmp_path.joinpath(*["long" * 20] * 7) / "klbr.sqlite")


async def test_an_empty_file_becomes_a_store(store_path: Path) -> None:
    store_path.write_bytes(b"")  # noqa: ASYNC240
    assert await opens(store_path) == 1


# What another version made


async def test_a_store_with_a_later_migration_is_refused(store_path: Path) -> None:
    await opens(store_path)
    later = Migrations("klbr_trio")

    @later()
    def shinier(db: Database) -> None:
        db.execute("CREATE TABLE shiny (a)")

    with raw(store_path) as conn:
        later.apply(Database(conn, execute_plugins=False))
    await too_new(store_path)


async def test_a_store_stamped_by_a_later_version_is_refused(store_path: Path) -> None:
    await opens(store_path)
    with raw(store_path) as conn:
        conn.execute(f"PRAGMA user_version = {len(KNOWN) + 1}")
    await too_new(store_path)


async def too_new(path: Path) -> None:
    before = path.read_bytes()  # noqa: ASYNC240
    with pytest.raises(StoreTooNew, match="made by a newer version"):
        await opens(path)
    assert path.read_bytes() == before  # noqa: ASYNC240


def test_a_migration_that_fails_leaves_nothing(tmp_path: Path) -> None:
    half = Migrations("klbr_trio")

    @half()
    def fails(db: Database) -> None:
        db.execute("CREATE TABLE first (a)")
        db.execute("CREATE TABLE first (a)")

    with raw(tmp_path / "x.sqlite") as conn:
        with pytest.raises(sqlite3.OperationalError):
            half.apply(Database(conn, execute_plugins=False))
        assert not conn.in_transaction
        names = [name for (name,) in conn.execute("SELECT name FROM sqlite_master")]
        assert "first" not in names
        applied = half.applied(Database(conn, execute_plugins=False))
        assert [migration.name for migration in applied] == []


def test_known_migrations_are_the_ones_there_are() -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as conn:
        db = Database(conn, execute_plugins=False)
        MIGRATIONS.apply(db)
        assert tuple(migration.name for migration in MIGRATIONS.applied(db)) == KNOWN


# Damage and others at the file


async def test_a_corrupt_store_is_called_that(store_path: Path) -> None:
    await opens(store_path)
    head = store_path.read_bytes()[:100]  # noqa: ASYNC240
    store_path.write_bytes(head + os.urandom(20_000))  # noqa: ASYNC240
    with pytest.raises(StoreBroken, match=r"corrupt: .*; restore a backup"):
        await opens(store_path)


async def test_a_store_that_another_program_holds_is_waited_for_and_then_unavailable(
    store_path: Path,
) -> None:
    await opens(store_path)
    with raw(store_path) as conn:
        conn.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            await opens(store_path)
    assert await opens(store_path) == 2


async def test_a_caller_s_error_leaves_as_it_came(store_path: Path) -> None:
    with pytest.raises(UnknownSession):
        async with Store.open(store_path) as store:
            await store.append("nobody", "my.kind", {})
    with pytest.raises(KeyError):
        async with Store.open(store_path):
            raise KeyError("mine")
    assert await opens(store_path) == 3
