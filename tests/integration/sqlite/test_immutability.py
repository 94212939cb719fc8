"""The database enforces the rules of the log for every writer of the file."""

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from seriatim.core.event import NewEvent
from seriatim.core.kinds import StreamKind
from seriatim.store.sqlite.store import SqliteStore
from tests.integration.sqlite.store_appender import StoreAppender, read_everything

TRACE: dict[str, Any] = {
    "event_id": "e",
    "occurred_at": "2026-01-01T00:00:00Z",
    "producer_id": "p",
    "source_system": "s",
    "actor_type": "agent",
    "actor_id": "a",
}

NO_KEY: dict[str, Any] = {"idempotency_index": None}


@pytest.fixture
def raw_connection(
    store: SqliteStore, appender: StoreAppender, path: str
) -> Iterator[sqlite3.Connection]:
    """A plain connection to a log with a few events."""
    store.declare(
        StreamKind(name="gate", first_seq=0, opening_type="opened", closing_types=("shut", "lost"))
    )
    appender.append(store, NewEvent("placed", {"n": 1}, stream=("order", "1"), tags=("a", "b")))
    appender.append(store, NewEvent("noted", {"n": 2}, idempotency_key="k"))
    appender.append(store, NewEvent("opened", stream=("gate", "1")))
    appender.append(store, NewEvent("shut", stream=("gate", "1")))
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "update events set payload = '{}' where position = 1",
        "update events set position = 9 where position = 4",
        "delete from events",
        "delete from events where position = 4",
        "insert or replace into events select * from events where position = 1",
        "update event_tags set position = 2",
        "delete from event_tags",
        "insert into event_tags (tag_key, position) values (randomblob(16), 99)",
        "update log set log_id = '00000000-0000-0000-0000-000000000000'",
        "update log set epoch = 0",
        "delete from log",
        "insert or replace into log values (1, '00000000-0000-0000-0000-000000000000', 1, 1)",
        "update declarations set body = '{}'",
        "delete from declarations",
        "delete from closing_types",
        "update stream_kinds set first_seq = 1",
    ],
)
def test_stored_rows_cannot_be_changed(
    store: SqliteStore, raw_connection: sqlite3.Connection, statement: str
) -> None:
    """F2: UPDATE, DELETE and REPLACE of events, tags, identity and rules are refused by trigger."""
    before = read_everything(store)
    with pytest.raises(sqlite3.IntegrityError):
        raw_connection.execute(statement)
    assert read_everything(store) == before


def insert(
    raw_connection: sqlite3.Connection, like: int, verb: str = "insert", **changes: object
) -> None:
    """Insert a copy of an event, changed; a new id and the next position by default."""
    cursor = raw_connection.execute("select * from events where position = ?", (like,))
    row = dict(zip([name for name, *_ in cursor.description], cursor.fetchone(), strict=True))
    row |= {"position": 5, "append_position": 5, "event_key": b"x" * 16, "event_id": "x"} | changes
    names = ", ".join(row)
    values = ", ".join(f":{name}" for name in row)
    raw_connection.execute(f"{verb} into events ({names}) values ({values})", row)


@pytest.mark.parametrize(
    ("like", "changes", "reason"),
    [
        (2, NO_KEY | {"position": 6, "append_position": 6}, "position is not the next"),
        (2, NO_KEY | {"position": 4, "append_position": 4}, "position is not the next"),
        (2, NO_KEY | {"append_position": 3}, "append_position"),
        (2, {}, "idempotency_key is taken"),
        (1, {}, "stream_seq is not the next"),
        (1, {"stream_seq": 3}, "stream_seq is not the next"),
        (1, {"stream_seq": None}, "stream_seq is not the next"),
        (1, {"stream_key": b"y" * 16, "stream_seq": 0}, "stream_seq is not the next"),
        (4, {"stream_seq": 2}, "the stream is closed"),
        (4, {"stream_key": b"y" * 16, "stream_seq": 0}, "the opening type stands first"),
        (2, NO_KEY | {"payload_hash": b"short"}, "CHECK"),
        (2, NO_KEY | {"tenant_id": ""}, "CHECK"),
        (2, NO_KEY | {"event_version": 0}, "CHECK"),
        (2, NO_KEY | {"occurred_at": "2026-01-01T00:00:00Z"}, "CHECK"),
        (2, NO_KEY | {"payload": None}, "NOT NULL"),
    ],
)
def test_direct_inserts_are_checked(
    raw_connection: sqlite3.Connection, like: int, changes: dict[str, Any], reason: str
) -> None:
    """F2: triggers check positions, numbers, closed streams and opening types of direct inserts."""
    with pytest.raises(sqlite3.IntegrityError, match=reason):
        insert(raw_connection, like, **changes)


@pytest.mark.parametrize("verb", ["insert", "insert or replace"])
def test_event_ids_and_keys_are_unique(raw_connection: sqlite3.Connection, verb: str) -> None:
    """F2: an event id is unique, and REPLACE does not delete its event."""
    (key,) = raw_connection.execute("select event_key from events where position = 2").fetchone()
    with pytest.raises(sqlite3.IntegrityError, match="event_id is taken"):
        insert(raw_connection, 2, verb, idempotency_index=None, event_key=key)
    with pytest.raises(sqlite3.IntegrityError, match="idempotency_key is taken"):
        insert(raw_connection, 2, verb)
    assert raw_connection.execute("select count(*) from events").fetchone() == (4,)


def test_the_trace_kind_is_enforced_without_a_declaration(
    store: SqliteStore, appender: StoreAppender, raw_connection: sqlite3.Connection
) -> None:
    """F2: a finished trace takes no further event, without a declaration of its kind."""
    started = {
        "workflow": "w",
        "title": "t",
        "primary_entity": {"entity_type": "e", "entity_id": "1"},
    }
    stream = ("trace", "t-1")
    first = NewEvent(
        "TraceStarted", started, stream=stream, stream_seq=0, idempotency_key="t0", **TRACE
    )
    last = NewEvent(
        "TraceFinished",
        {"outcome": "success"},
        stream=stream,
        stream_seq=1,
        idempotency_key="t1",
        **(TRACE | {"event_id": "f"}),
    )
    appender.append(store, first, last)
    changes: dict[str, Any] = {
        "position": 7,
        "append_position": 7,
        "stream_seq": 2,
        "idempotency_index": None,
    }
    with pytest.raises(sqlite3.IntegrityError, match="the stream is closed"):
        insert(raw_connection, 6, event_type="InputObserved", **changes)
    assert store.rules().version == 1
