"""The digest of events: every column of a record is part of it, or listed here as left out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from seriatim.core.event import EventRecord
from seriatim.pipeline.columns import EVENT_COLUMNS, EVENT_SCHEMA
from seriatim.pipeline.digest import build_event_hash, digest_batch

# Columns that are no part of the digest on purpose, and what stands for them.
LEFT_OUT = {
    "recorded_at": "the store's own time is never part of a digest",
    "payload": "payload_hash stands for it",
    "occurred_at": "occurred_text stands for it, and recorded_at where the log set it",
}
TIME = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
CHANGED: dict[pa.DataType, Any] = {
    pa.int64(): 8,
    pa.int32(): 9,
    pa.string(): "other",
    pa.map_(pa.string(), pa.string()): [("label", "other")],
    pa.list_(pa.string()): ["other"],
    pa.timestamp("us", tz="UTC"): datetime(2026, 1, 1, tzinfo=UTC),
}


def base() -> dict[str, Any]:
    """Return an event with a value in every column."""
    known: dict[pa.DataType, Any] = {
        pa.int64(): 7,
        pa.int32(): 1,
        pa.map_(pa.string(), pa.string()): [("label", "value")],
        pa.list_(pa.string()): ["tag"],
        pa.timestamp("us", tz="UTC"): TIME,
    }
    return {field.name: known.get(field.type, f"a {field.name}") for field in EVENT_SCHEMA}


def digest(event: dict[str, Any]) -> int:
    """Return the digest of one event."""
    return digest_batch(pa.RecordBatch.from_pylist([event], schema=EVENT_SCHEMA))


def variants() -> dict[str, dict[str, Any]]:
    """Return events that differ from the base in one column each, or in a null there."""
    found = {"nothing": base()}
    for field in EVENT_SCHEMA:
        if field.name in LEFT_OUT:
            continue
        found[field.name] = base() | {field.name: CHANGED[field.type]}
        if field.nullable:
            found[f"{field.name} null"] = base() | {field.name: None}
            if field.type == pa.string():
                found[f"{field.name} empty"] = base() | {field.name: ""}
    return found


def test_every_field_of_a_record_is_a_column() -> None:
    """J1: the fields of a record are the columns of an event, except occurred_text."""
    spelled = {"occurred_text"}  # the producer's text, which a record has in occurred_at

    assert set(EventRecord.__struct_encode_fields__) == set(EVENT_COLUMNS) - spelled


@pytest.mark.parametrize("name", [name for name in EVENT_COLUMNS if name not in LEFT_OUT])
def test_each_column_alone_changes_the_digest(name: str) -> None:
    """J1: events that differ in one column have different digests."""
    changed = base() | {name: CHANGED[EVENT_SCHEMA.field(name).type]}

    assert digest(changed) != digest(base())


@pytest.mark.parametrize("name", LEFT_OUT)
def test_left_out_columns_do_not_change_the_digest(name: str) -> None:
    """A1: changing a left-out column does not change the digest."""
    changed = base() | {name: CHANGED[EVENT_SCHEMA.field(name).type]}

    assert digest(changed) == digest(base())


def test_no_two_variants_share_a_digest() -> None:
    """J1: null, empty text and another value give different digests in every column."""
    digests = {name: digest(event) for name, event in variants().items()}

    assert len(set(digests.values())) == len(digests)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"tags": ["a", "b"]}, {"tags": ["b", "a"]}),
        ({"tags": ["a", "b"]}, {"tags": ["a"]}),
        ({"tags": [""]}, {"tags": []}),
        ({"metadata": [("a", "b")]}, {"metadata": [("b", "a")]}),
        ({"metadata": [("a", "")]}, {"metadata": []}),
        ({"tags": ["x"], "metadata": []}, {"tags": [], "metadata": [("x", "")]}),
        ({"actor_type": "a", "actor_id": ""}, {"actor_type": "", "actor_id": "a"}),
    ],
)
def test_order_and_bounds_of_values_change_the_digest(
    left: dict[str, Any], right: dict[str, Any]
) -> None:
    """J1: the digest depends on the order of values and on the bounds between them."""
    assert digest(base() | left) != digest(base() | right)


def test_spark_computes_the_same_digests(spark: SparkSession) -> None:
    """J1: Spark's expression computes the same digest for each event."""
    events = list(variants().values())
    rows = [event | {"metadata": dict(event["metadata"])} for event in events]
    columns = {
        name: [row[name] for row in rows]
        for name in EVENT_COLUMNS
        if name not in ("occurred_at", "recorded_at")
    }
    types = {name: EVENT_SCHEMA.field(name).type for name in columns}
    table = pa.table(
        {
            name: pa.array(
                [list(one.items()) if isinstance(one, dict) else one for one in values], types[name]
            )
            for name, values in columns.items()
        }
    )
    hashes = [
        row.hash
        for row in spark.createDataFrame(table).select(build_event_hash().alias("hash")).collect()
    ]

    assert [int(hash_, 16) for hash_ in hashes] == [digest(event) for event in events]
