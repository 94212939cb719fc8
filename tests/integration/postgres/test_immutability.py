"""The database refuses changes, gaps, invalid streams and repeated keys (F2)."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest

import seriatim
from seriatim import NewEvent, StreamKind
from seriatim.core.ids import stream_key
from tests.integration.postgres.conftest import declare_orders, insert_by_hand

CHANGES = [
    "update seriatim.events set payload = '{}'",
    "delete from seriatim.events",
    "truncate seriatim.events",
]
SMALL_TABLES = ["event_tags", "declarations", "stream_kinds", "kind_types"]


@pytest.fixture
def filled(postgres_url: str) -> str:
    """A log with a few events, of which stream `order/1` is closed."""
    with seriatim.open(postgres_url) as log:
        declare_orders(log)
        for event_type in ("order.opened", "order.changed", "order.closed"):
            log.append([NewEvent(event_type, {}, stream=("order", "1"), tags=("red",))])
        log.append([NewEvent("order.opened", {}, stream=("order", "2"))])
    return postgres_url


def state_of(url: str, text: str) -> str | None:
    """Run a statement and return the SQLSTATE of its refusal."""
    with psycopg.connect(url) as connection:
        try:
            connection.execute(text.encode())
        except psycopg.Error as error:
            return error.sqlstate
    return None


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_refused_for_everyone(filled: str, change: str) -> None:
    """F2: UPDATE, DELETE and TRUNCATE of events are refused by trigger, for superusers too."""
    assert state_of(filled, change) == "SQ003"


def test_changes_of_no_row_are_refused(filled: str) -> None:
    """F2: a statement that changes no row is refused, too."""
    assert state_of(filled, "update seriatim.events set payload = '{}' where false") == "SQ003"
    assert state_of(filled, "delete from seriatim.events where false") == "SQ003"


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_refused_for_the_application(app_url: str, change: str) -> None:
    """F2: the application's role has no privilege to change events."""
    assert state_of(app_url, change) == "42501"


@pytest.mark.parametrize("table", SMALL_TABLES)
@pytest.mark.parametrize("act", ["update", "delete", "truncate"])
def test_rules_and_tags_are_append_only(filled: str, app_url: str, table: str, act: str) -> None:
    """F2: tags and declarations are as immutable as events."""
    column = {"event_tags": "position", "declarations": "name"}.get(table, "kind")
    column = "name" if table == "stream_kinds" else column
    text = {
        "update": f"update seriatim.{table} set {column} = {column}",
        "delete": f"delete from seriatim.{table}",
        "truncate": f"truncate seriatim.{table}",
    }[act]

    assert state_of(filled, text) == "SQ003"
    assert state_of(app_url, text) == "42501"


def test_application_cannot_disable_the_protection(app_url: str) -> None:
    """F2: the application's role cannot disable triggers, drop tables or write the identity."""
    for text in (
        "alter table seriatim.events disable trigger all",
        "drop table seriatim.events cascade",
        "update seriatim.log set epoch = 7",
        "insert into seriatim.log (only_row, fingerprint) values (true, 'x')",
        "delete from seriatim.cursors",
        "delete from seriatim.migrations",
        "set session_replication_role = replica",
        "drop function seriatim.refuse_change() cascade",
    ):
        assert state_of(app_url, text) == "42501", text


@pytest.mark.parametrize(
    ("row", "state"),
    [
        ({"position": 6}, "SQ001"),
        ({"position": 9}, "SQ001"),
        ({"position": 0}, "23514"),
        ({"position": 4}, "23505"),
        ({"position": 5, "append_position": 6}, "23514"),
        ({"position": 5, "event_version": 0}, "23514"),
        ({"position": 5, "payload_hash": b"short"}, "23514"),
        ({"position": 5, "stream_id": "lonely"}, "23514"),
        ({"position": 5, "payload": None}, "23502"),
        ({"position": 5, "stream": ("order", "2"), "seq": 3}, "SQ001"),
        ({"position": 5, "stream": ("order", "2"), "seq": 1}, "23505"),
        ({"position": 5, "stream": ("order", "2"), "seq": -1}, "23514"),
        ({"position": 5, "stream": ("free", "1"), "seq": 2}, "SQ001"),
        ({"position": 5, "stream": ("free", "1"), "seq": 0}, "SQ001"),
    ],
)
def test_invalid_rows_are_refused(filled: str, row: dict[str, Any], state: str) -> None:
    """F2: the database refuses gaps, repeated numbers and invalid values."""
    with psycopg.connect(filled) as connection, pytest.raises(psycopg.Error) as refused:
        insert_by_hand(connection, **row)

    assert refused.value.sqlstate == state


@pytest.mark.parametrize(
    ("stream", "seq", "event_type"),
    [
        (("order", "1"), 4, "order.changed"),  # after the closing event
        (("order", "3"), 1, "order.changed"),  # opens with another type
        (("order", "2"), 2, "order.opened"),  # opens twice
        (("order", "2"), 2, "parcel.sent"),  # not in the closed catalogue
        (("trace", "t-1"), 1, "TraceStarted"),  # traces begin at 0
        (("trace", "t-1"), 0, "InputObserved"),  # and with TraceStarted
    ],
)
def test_invalid_streams_are_refused(
    filled: str, stream: tuple[str, str], seq: int, event_type: str
) -> None:
    """F2: opening, closing and catalogue rules apply to rows inserted with plain SQL."""
    with psycopg.connect(filled) as connection, pytest.raises(psycopg.Error) as refused:
        insert_by_hand(connection, 5, stream=stream, seq=seq, event_type=event_type)

    assert refused.value.sqlstate == "SQ001"


def test_no_row_precedes_the_start_of_a_stream(filled: str) -> None:
    """F2: a number before a stream's first is refused, also if its kind now starts at 0."""
    with seriatim.open(filled) as log:
        log.append([NewEvent("a", stream=("late", "1"))])
        log.declare(StreamKind(name="late", first_seq=0))

    with psycopg.connect(filled) as connection, pytest.raises(psycopg.Error) as refused:
        insert_by_hand(connection, 6, stream=("late", "1"), seq=0, event_type="a")

    assert refused.value.sqlstate == "SQ001"


def test_valid_row_is_accepted(filled: str) -> None:
    """F2: the same insert with the right numbers is accepted."""
    with psycopg.connect(filled) as connection:
        insert_by_hand(connection, 5, stream=("order", "2"), seq=2, event_type="order.changed")

    with seriatim.open(filled) as log:
        last = log.last_event(("order", "2"))
        assert last is not None
        assert (last.position, last.stream_seq) == (5, 2)


@pytest.mark.parametrize("column", ["event_key", "idempotency_index"])
def test_ids_and_keys_are_unique(filled: str, column: str) -> None:
    """F2: event ids (per tenant) and idempotency keys are unique for every writer."""
    same: dict[str, Any] = {column: "00000000-0000-0000-0000-000000000001"}
    with psycopg.connect(filled) as connection:
        insert_by_hand(connection, 5, **same)
        connection.commit()
        with pytest.raises(psycopg.errors.UniqueViolation):
            insert_by_hand(connection, 6, **same)
        connection.rollback()
        if column == "event_key":
            insert_by_hand(connection, 6, tenant_id="another", **same)


def copy_rows(url: str, rows: list[tuple[int, int, str]]) -> str | None:
    """COPY events of stream order/2 as one group, and return the SQLSTATE of the refusal."""
    columns = (
        "position, append_position, recorded_us, event_version, event_key, payload_hash,"
        " tenant_id, payload, stream_key, stream_type, stream_id, stream_seq, event_type"
    )
    key = stream_key("default", "order", "2").hex()
    with psycopg.connect(url) as connection:
        try:
            with connection.cursor().copy(f"copy seriatim.events ({columns}) from stdin") as copy:
                for position, seq, event_type in rows:
                    sound = (5, 1, 1, str(uuid.uuid4()), bytes(32), "default", "{}", key)
                    copy.write_row((position, *sound, "order", "2", seq, event_type))
        except psycopg.Error as error:
            return error.sqlstate
    return None


@pytest.mark.parametrize(
    "rows",
    [
        [(5, 2, "order.changed"), (7, 3, "order.changed")],  # a hole in the positions
        [(5, 2, "order.changed"), (6, 4, "order.changed")],  # a hole in the stream
        [(5, 2, "order.closed"), (6, 3, "order.changed")],  # a closing event in the middle
    ],
)
def test_groups_are_checked_as_a_whole(filled: str, rows: list[tuple[int, int, str]]) -> None:
    """F2: a COPY of several rows is checked as one group."""
    assert copy_rows(filled, rows) == "SQ001"
    assert copy_rows(filled, [(5, 2, "order.changed"), (6, 3, "order.closed")]) is None
