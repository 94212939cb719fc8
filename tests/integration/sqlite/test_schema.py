"""Creation and migration of the schema, and files of other programs or versions."""

import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import pytest

from seriatim.core.errors import BackendFailure
from seriatim.store.sqlite import connection, migrate
from seriatim.store.sqlite.statements import COLUMN_NAMES
from seriatim.store.sqlite.store import SqliteStore
from tests.integration.sqlite.store_appender import StoreAppender, make_facts


def schema_of(connection: sqlite3.Connection) -> dict[str, object]:
    """Return everything that distinguishes two schemas."""
    objects = connection.execute("select type, name, sql from sqlite_schema order by name")
    seeds = {
        table: sorted(connection.execute(f"select * from {table}"))
        for table in ("seriatim_schema", "stream_kinds", "closing_types")
    }
    return {
        "objects": [(kind, name, re.sub(r"\s+", " ", sql or "")) for kind, name, sql in objects],
        "seeds": seeds,
        "version": migrate.read_schema_version(connection),
        "application": connection.execute("pragma application_id").fetchone(),
    }


def test_a_migrated_log_equals_a_new_one(
    store: SqliteStore,
    path: str,
    tmp_path: Path,
    appender: StoreAppender,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F3: opening a log of the previous schema migrates it and keeps its events."""
    older = str(tmp_path / "older.db")
    with monkeypatch.context() as patched:
        patched.setattr(migrate, "MIGRATIONS", migrate.MIGRATIONS[:1])
        patched.setattr(migrate, "SCHEMA_VERSION", 1)
        before = SqliteStore(older)
        appender.append(before, *make_facts(3))
        identity = before.identity()
        before.close()
    after = SqliteStore(older)
    assert (after.head(), after.identity()) == (3, identity)
    after.close()
    migrated, fresh = sqlite3.connect(older), sqlite3.connect(path)
    assert schema_of(migrated) == schema_of(fresh)
    seen = migrated.execute("select position, recorded from readable_events").fetchall()
    assert [position for position, _ in seen] == [1, 2, 3]
    migrated.close()
    fresh.close()


def test_migrations_are_listed_without_gaps() -> None:
    """F3: every migration file is listed, numbered without gaps."""
    stored = files("seriatim.store.sqlite") / "migrations"
    names = sorted(entry.name for entry in stored.iterdir() if entry.name.endswith(".sql"))
    assert names == list(migrate.MIGRATIONS)
    assert [int(name[:4]) for name in names] == list(range(1, migrate.SCHEMA_VERSION + 1))


def test_columns_follow_the_record(store: SqliteStore, path: str) -> None:
    """A1: the columns of the table have the order of the record's fields."""
    connection = sqlite3.connect(path)
    stored = [name for _, name, *_ in connection.execute("pragma table_info(events)")]
    connection.close()
    assert stored[: len(COLUMN_NAMES)] == list(COLUMN_NAMES)


def test_a_log_keeps_its_identity_when_reopened(path: str, appender: StoreAppender) -> None:
    """F8: identity and events are the same when a log is opened again."""
    first = SqliteStore(path)
    appender.append(first, *make_facts(3))
    identity = first.identity()
    first.close()
    second = SqliteStore(path, create=False)
    assert second.identity() == identity
    assert second.head() == 3
    assert second.raise_epoch().epoch == 2
    second.close()


def test_concurrent_creations_make_one_log(path: str) -> None:
    """F3: concurrent creations of a file make one log."""
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: SqliteStore(path), range(8)))
    assert len({store.identity().log_id for store in stores}) == 1
    for store in stores:
        store.close()


def run_statements(path: str, *statements: str) -> None:
    """Run statements on the file as another program would."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_a_compatible_newer_schema_is_accepted(store: SqliteStore, path: str) -> None:
    """F3: a program one version older works on a newer schema, with a warning of doctor."""
    store.close()
    newer = migrate.SCHEMA_VERSION + 1
    run_statements(
        path, f"pragma user_version = {newer}", f"update seriatim_schema set version = {newer}"
    )
    again = SqliteStore(path)
    assert again.head() == 0
    (finding,) = [found for found in again.doctor() if found.check == "schema"]
    assert finding.level == "warning"
    again.close()


def test_a_too_new_schema_is_refused(store: SqliteStore, path: str) -> None:
    """F3: a schema that is too new is refused: upgrade seriatim."""
    store.close()
    works_from = migrate.SCHEMA_VERSION + 1
    newer = works_from + 1
    run_statements(
        path,
        f"pragma user_version = {newer}",
        f"update seriatim_schema set version = {newer}, works_from = {works_from}",
    )
    with pytest.raises(BackendFailure, match="upgrade the package") as refusal:
        SqliteStore(path)
    assert not refusal.value.retryable


def test_file_of_another_program_is_not_changed(path: str) -> None:
    """L3: a file with tables of another program is refused and unchanged."""
    run_statements(path, "create table events (mine text)")
    with pytest.raises(BackendFailure, match="another program"):
        SqliteStore(path)
    connection = sqlite3.connect(path)
    assert connection.execute("select name from sqlite_schema").fetchall() == [("events",)]
    connection.close()


def test_a_missing_log_is_not_created(path: str) -> None:
    """L3: with create=False a missing file is an error and is not created."""
    with pytest.raises(BackendFailure, match="no log at"):
        SqliteStore(path, create=False)
    assert not Path(path).exists()


def test_an_old_sqlite_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L3: an old SQLite library is refused with the version that is needed."""
    monkeypatch.setattr(connection, "MIN_SQLITE_VERSION", (99, 0, 0))
    with pytest.raises(BackendFailure, match=r"version 99\.0\.0 or newer"):
        SqliteStore(path)


@pytest.mark.parametrize("place", ["", ":memory:"])
def test_a_log_needs_a_file(place: str) -> None:
    """F1: an empty path and `:memory:` are refused with a hint at `memory:`."""
    with pytest.raises(BackendFailure, match="memory:"):
        SqliteStore(place)
