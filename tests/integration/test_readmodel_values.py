"""Columns of read models return every kind of value exactly as stored."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest

from seriatim.core.errors import BackendFailure
from seriatim.core.fold import ReadModelRow, RowDigest, RowFormat
from seriatim.core.projection import Table, projection
from seriatim.factory import open_read_model
from seriatim.store.readmodel.model import ReadModel
from tests.integration.readmodel_support import (
    SeatCount,
    begin_and_claim,
    keep_state,
    make_step,
    rows_of,
    seat_rows,
    seats,
)

TOKYO = timezone(timedelta(hours=9))
SAMPLES: dict[type, list[Any]] = {
    str: ["", "a", "Grüße 🌍", "\x01\x7f\r\n\t", "'\"\\%s:x{}", "x" * 100_000, "NULL", "null"],
    int: [0, -1, (1 << 63) - 1, -(1 << 63), 1 << 53, (1 << 53) + 1],
    float: [0.0, -0.0, 1, 1.0, 0.1, 1e16, 1e22, 5e-324, 1.7976931348623157e308, -2.5, 2**53],
    bool: [True, False],
    datetime: [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2026, 1, 1, 9, 0, 0, 1, tzinfo=TOKYO),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1582, 10, 10, 12, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ],
    dict: [
        {},
        {"a": 1.0, "b": 1e16, "c": 10**40, "d": -0.0, "e": 0.1, "f": 1e-7, "g": 123456789.0},
        {"z": None, "a": {"b": [[], {}]}, "ü": "\u2028\x01", "": "'\\\""},
        {"same": 1, "Same": 2, "same ": 3},
    ],
    list: [[], [1, 1.0, True, None, "1"], [(1, 2)], [{"b": 1, "a": 2}]],
}
CASES = [(kind, value) for kind, values in SAMPLES.items() for value in values]


def table_of(kind: type) -> Table:
    """Declare a table with one column of a type."""
    return Table("one", {"key": str}, {"value": kind})


@pytest.mark.parametrize("kind", list(SAMPLES))
def test_values_are_returned_as_stored(model: ReadModel, kind: type) -> None:
    """I3: stored values are returned with equal type, value and digest, also None."""
    table = table_of(kind)
    made = projection("one", key="payload.key", columns={"value": kind})(keep_state)
    token = begin_and_claim(model, made)
    shape = RowFormat(table)
    values = [*SAMPLES[kind], None]
    rows = [shape.normalize({"key": f"{n:02}", "value": value}) for n, value in enumerate(values)]
    keyed = {("default", row["key"]): ReadModelRow("default", 1, row) for row in rows}
    model.commit(made, make_step(0, 1, state_rows=keyed), token=token)
    found = rows_of(model, made)

    assert found == rows
    assert [type(row["value"]) for row in found] == [type(row["value"]) for row in rows]
    assert list(map(repr, found)) == list(map(repr, rows))
    expected = RowDigest()
    for row in rows:
        expected.add(made.tables[0], "default", row)
    with model.snapshot() as moment:
        assert moment.compute_digest(made).text() == expected.text()
    owners = list(keyed)
    assert model.load_states(made, owners) == {owner: keyed[owner].row for owner in owners}


@pytest.mark.parametrize("kind", list(SAMPLES))
def test_single_values_are_returned_as_stored(model: ReadModel, kind: type) -> None:
    """I3: values stored one by one are returned unchanged."""
    made = projection("one", key="payload.key", columns={"value": kind})(keep_state)
    token = begin_and_claim(model, made)
    shape = RowFormat(table_of(kind))
    rows = [
        shape.normalize({"key": f"{n:02}", "value": one}) for n, one in enumerate(SAMPLES[kind])
    ]
    for n, row in enumerate(rows):
        model.commit(
            made,
            make_step(
                n, n + 1, state_rows={("default", row["key"]): ReadModelRow("default", n + 1, row)}
            ),
            token=token,
        )
    assert list(map(repr, rows_of(model, made))) == list(map(repr, rows))


@pytest.mark.parametrize("kind", [str, int, datetime])
def test_keys_are_ordered(model: ReadModel, kind: type) -> None:
    """I3: rows are ordered by keys of every type as Python orders them."""
    made = projection(
        "keys", key="stream_id", tables=[Table("keys", {"a": kind, "b": str}, {})], state=SeatCount
    )(keep_state)
    token = begin_and_claim(model, made)
    shape = RowFormat(made.tables[0])
    values = [one for one in SAMPLES[kind] if not (kind is str and len(one) > 2000)]
    rows = [shape.normalize({"a": one, "b": b}) for one in values for b in ("x", "y")]
    model.commit(
        made,
        make_step(0, 1, rows={"keys": [ReadModelRow("default", 1, row) for row in rows]}),
        token=token,
    )

    assert rows_of(model, made) == sorted(rows, key=lambda row: (row["a"], row["b"]))


def test_the_longest_keys_are_indexed(model: ReadModel) -> None:
    """I7: rows with the longest tenant and key can be stored."""
    tenant = "".join(chr(0x4E00 + n * 37 % 20_000) for n in range(170))
    key = "".join(chr(0x4E00 + n * 7919 % 20_000) for n in range(666))
    model.create_projection(seats, tenant, log_identity())
    token = model.claim("seats", "me", 60)
    assert token is not None
    rows = seat_rows({key: 1}, 1, tenant)
    kept = rows[tenant, key]
    assert kept.row is not None
    assert RowFormat(seats.tables[0]).normalize(kept.row) == kept.row
    model.commit(seats, make_step(0, 1, state_rows=rows), token=token)

    assert [row["stream_id"] for row in rows_of(model)] == [key]


def log_identity() -> Any:
    """Return the log of these tests."""
    from tests.integration.readmodel_support import LOG

    return LOG


def test_times_are_independent_of_the_servers_time_zone(empty_postgres_url: str) -> None:
    """I3: the time zone of the server changes nothing."""
    url = f"{empty_postgres_url}?schema=read&options=-c%20timezone%3DPacific/Kiritimati"
    model = open_read_model(url)
    made = projection("one", key="payload.key", columns={"value": datetime})(keep_state)
    token = begin_and_claim(model, made)
    shape = RowFormat(made.tables[0])
    rows = [
        shape.normalize({"key": str(n), "value": one}) for n, one in enumerate(SAMPLES[datetime])
    ]
    keyed = {("default", row["key"]): ReadModelRow("default", 1, row) for row in rows}
    model.commit(made, make_step(0, 1, state_rows=keyed), token=token)

    assert rows_of(model, made) == rows
    with psycopg.connect(empty_postgres_url) as connection:
        shown = connection.execute("select value from read.one where key = '1'").fetchone()
    assert shown is not None
    assert shown[0] == SAMPLES[datetime][1]
    model.close()


def test_columns_have_common_sql_types(empty_postgres_url: str) -> None:
    """I1: columns have the SQL types that applications expect."""
    model = open_read_model(f"{empty_postgres_url}?schema=read")
    columns: dict[str, Any] = {
        "s": str,
        "i": int,
        "f": float,
        "b": bool,
        "t": datetime,
        "d": dict,
        "l": list,
    }
    begin_and_claim(model, projection("one", key="payload.key", columns=columns)(keep_state))
    model.close()
    with psycopg.connect(empty_postgres_url) as connection:
        found = connection.execute(
            "select column_name, data_type, is_nullable from information_schema.columns"
            " where table_schema = 'read' and table_name = 'one' order by ordinal_position"
        ).fetchall()

    assert found == [
        ("tenant_id", "text", "NO"),
        ("key", "text", "NO"),
        ("s", "text", "YES"),
        ("i", "bigint", "YES"),
        ("f", "double precision", "YES"),
        ("b", "boolean", "YES"),
        ("t", "timestamp with time zone", "YES"),
        ("d", "json", "YES"),
        ("l", "json", "YES"),
        ("position", "bigint", "NO"),
    ]


def test_corrupt_time_is_reported(tmp_path: Path) -> None:
    """I3: an invalid stored time is reported with table and key."""
    model = open_read_model(f"sqlite:///{tmp_path}/read.db")
    made = projection("one", key="payload.key", columns={"value": datetime})(keep_state)
    token = begin_and_claim(model, made)
    row = RowFormat(made.tables[0]).normalize(
        {"key": "a", "value": datetime(2026, 1, 1, tzinfo=UTC)}
    )
    model.commit(
        made,
        make_step(0, 1, state_rows={("default", "a"): ReadModelRow("default", 1, row)}),
        token=token,
    )
    with sqlite3.connect(tmp_path / "read.db") as connection:
        connection.execute("update one set value = 'soon'")
    connection.close()

    with pytest.raises(
        BackendFailure, match=r"table one was modified outside Seriatim at key .*'a'.*soon"
    ):
        rows_of(model, made)
    model.close()
