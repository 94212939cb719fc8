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


def shape(connection: sqlite3.Connection) -> dict[str, object]:
    """Return everything that makes one schema another."""
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


def test_an_older_log_is_migrated_and_equals_a_fresh_one(
    store: SqliteStore,
    path: str,
    tmp_path: Path,
    appender: StoreAppender,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F3: opening a log of the previous schema brings it up to date and keeps its events."""
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
    assert shape(migrated) == shape(fresh)
    seen = migrated.execute("select position, recorded from readable_events").fetchall()
    assert [position for position, _ in seen] == [1, 2, 3]
    migrated.close()
    fresh.close()


def test_every_migration_file_is_listed_in_order() -> None:
    """F3: migrations are numbered without gaps, and none is forgotten."""
    stored = files("seriatim.store.sqlite") / "migrations"
    names = sorted(entry.name for entry in stored.iterdir() if entry.name.endswith(".sql"))
    assert names == list(migrate.MIGRATIONS)
    assert [int(name[:4]) for name in names] == list(range(1, migrate.SCHEMA_VERSION + 1))


def test_columns_follow_the_record(store: SqliteStore, path: str) -> None:
    """A1: the table's columns are in the order of the record's fields."""
    connection = sqlite3.connect(path)
    stored = [name for _, name, *_ in connection.execute("pragma table_info(events)")]
    connection.close()
    assert stored[: len(COLUMN_NAMES)] == list(COLUMN_NAMES)


def test_a_log_is_kept_when_it_is_opened_again(path: str, appender: StoreAppender) -> None:
    """F8: identity and events outlive the process that made them."""
    first = SqliteStore(path)
    appender.append(first, *make_facts(3))
    identity = first.identity()
    first.close()
    second = SqliteStore(path, create=False)
    assert second.identity() == identity
    assert second.head() == 3
    assert second.raise_epoch().epoch == 2
    second.close()


def test_many_openers_of_a_new_file_make_one_log(path: str) -> None:
    """F3: the schema is made once, under the write lock."""
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: SqliteStore(path), range(8)))
    assert len({store.identity().log_id for store in stores}) == 1
    for store in stores:
        store.close()


def change(path: str, *statements: str) -> None:
    """Run statements on the file as another program would."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_a_newer_schema_that_this_program_can_share_is_shared(
    store: SqliteStore, path: str
) -> None:
    """F3: a program one version older keeps working through an upgrade."""
    store.close()
    newer = migrate.SCHEMA_VERSION + 1
    change(path, f"pragma user_version = {newer}", f"update seriatim_schema set version = {newer}")
    again = SqliteStore(path)
    assert again.head() == 0
    (finding,) = [found for found in again.doctor() if found.check == "schema"]
    assert finding.level == "warning"
    again.close()


def test_a_schema_too_new_is_refused_with_the_cure(store: SqliteStore, path: str) -> None:
    """F3: an older program meets a clear refusal."""
    store.close()
    change(
        path, "pragma user_version = 6", "update seriatim_schema set version = 6, works_from = 5"
    )
    with pytest.raises(BackendFailure, match="upgrade the package") as refusal:
        SqliteStore(path)
    assert not refusal.value.retryable


def test_file_of_another_program_is_not_changed(path: str) -> None:
    """L3: tables that are not ours are a clear refusal, and stay untouched."""
    change(path, "create table events (mine text)")
    with pytest.raises(BackendFailure, match="another program"):
        SqliteStore(path)
    connection = sqlite3.connect(path)
    assert connection.execute("select name from sqlite_schema").fetchall() == [("events",)]
    connection.close()


def test_no_log_is_made_when_none_is_asked_for(path: str) -> None:
    """L3: with create=False a wrong path is an error, and leaves no file."""
    with pytest.raises(BackendFailure, match="no log at"):
        SqliteStore(path, create=False)
    assert not Path(path).exists()


def test_an_old_sqlite_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L3: a library too old for the schema is named, with the version that is needed."""
    monkeypatch.setattr(connection, "MIN_SQLITE_VERSION", (99, 0, 0))
    with pytest.raises(BackendFailure, match=r"version 99\.0\.0 or newer"):
        SqliteStore(path)


@pytest.mark.parametrize("place", ["", ":memory:"])
def test_a_log_needs_a_file(place: str) -> None:
    """F1: what lives in memory is the memory store."""
    with pytest.raises(BackendFailure, match="memory:"):
        SqliteStore(place)
