"""Reads with a bounded cost use their index."""

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from seriatim.core.indexes import StoredIndex
from seriatim.core.kinds import Rules
from seriatim.core.query import MATCH_ALL, Filter, Query
from seriatim.store.port import EventTypeRange, ReadSpec
from seriatim.store.sqlite import payload_predicates, queries
from seriatim.store.sqlite.index_scans import UNINDEXED_SEQ_MAX, IndexScan
from seriatim.store.sqlite.statements import SQL
from seriatim.store.sqlite.store import SqliteStore

RULES = Rules((), (), 1, (StoredIndex("indexed", "x"),))
RANGE = {"start": 0, "after": 0, "until": 9, "limit": 1, "after_seq": 0, "until_seq": 9}


@pytest.fixture
def connection(store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """A connection that explains query plans."""
    with store._readers.connection() as lent:
        yield lent


def plan(connection: sqlite3.Connection, sql: str, values: Any) -> list[str]:
    """Return the steps of SQLite's plan."""
    rows = connection.execute(f"explain query plan {sql}", values)
    return [detail for *_, detail in rows]


def check_plan(steps: list[str], index: str) -> None:
    """Check that a plan searches by the index, and neither scans events nor sorts."""
    assert any(index in step and step.startswith("SEARCH") for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps
    assert not any(step.startswith("SCAN events") for step in steps), steps


@pytest.mark.parametrize(
    ("name", "values", "index"),
    [
        ("select_head", (), "events"),
        ("find_last_event", (b"",), "events_by_stream "),
        ("find_event_by_id", (b"", ""), "events_by_id (event_key=? AND tenant_id=?)"),
        ("find_event_by_key", (b"",), "events_by_idempotency (idempotency_index=?)"),
        ("list_events_in_range", (1, 2), "INTEGER PRIMARY KEY"),
        ("find_event_id", (1,), "INTEGER PRIMARY KEY"),
        ("find_position_of_seq", (b"", 1), "events_by_stream (stream_key=? AND stream_seq=?)"),
        (
            "list_streams",
            {"tenant": "", "stream_type": None, "after": 0, "limit": 1, "scanned": 1},
            "events_opening (tenant_id=? AND rowid>?)",
        ),
        ("find_command", (b"",), "commands"),
        ("find_event_of_type", ("",), "events_by_type (tenant_id=? AND event_type=?)"),
        (
            "list_event_types",
            {"tenant": "", "first": "a.", "end": "a/", "limit": 9},
            "events_by_type (tenant_id=? AND event_type>? AND event_type<?)",
        ),
        (
            "count_event_types",
            EventTypeRange("a.", "", 9).as_parameters(""),
            "COVERING INDEX events_by_type (tenant_id=? AND event_type=?)",
        ),
        ("delete_old_commands", {"before": 1, "limit": 1}, "commands_by_age"),
    ],
)
def test_single_lookups_use_their_index(
    connection: sqlite3.Connection, name: str, values: Any, index: str
) -> None:
    """F7: the last event of a stream, an event id and an idempotency key come from an index."""
    steps = plan(connection, SQL[name], values)
    if name == "select_head":
        assert steps == ["SEARCH events"]  # the end of the table's own tree
        return
    check_plan(steps, index)


@pytest.mark.parametrize(
    ("name", "columns", "index"),
    [
        ("find_stream_heads", 2, "events_by_stream (stream_key=? AND stream_seq=?)"),
        ("find_stored_keys", 2, "events_by_idempotency (idempotency_index=?)"),
        ("find_stored_ids", 3, "events_by_id (event_key=? AND tenant_id=?)"),
    ],
)
def test_lookups_of_many_keys_use_their_index(
    connection: sqlite3.Connection, name: str, columns: int, index: str
) -> None:
    """F7: lookups under the lock use an index for each key."""
    rows = ", ".join([f"({', '.join('?' * columns)})"] * 4)
    steps = plan(connection, SQL[name].replace("{rows}", rows), [1] * columns * 4)
    check_plan(steps, index)


def test_the_state_of_a_log_is_found_by_index(connection: sqlite3.Connection) -> None:
    """F7: the ends of streams are read from a covering index, and nothing is scanned."""
    text = SQL["select_log_state"].replace("{last_seqs}", f", {SQL['select_last_seq']}" * 2)
    steps = plan(connection, text, [b"", b""])
    check_plan(steps, "COVERING INDEX events_by_stream (stream_key=?)")
    assert sum("events_by_stream" in step for step in steps) == 2


def spec(**changes: Any) -> ReadSpec:
    """Make a read of a tenant's page."""
    return ReadSpec(**{"tenant_id": "default", "limit": 10, **changes})


STREAM = "events_by_stream (stream_key=? AND stream_seq>? AND stream_seq<?)"
SPECS = [
    (spec(tenant_id=None), "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
    (spec(), "events_by_tenant (tenant_id=? AND rowid>? AND rowid<?)"),
    (
        spec(app_id="a", recorded_until_us=1),
        "events_by_tenant (tenant_id=? AND rowid>? AND rowid<?)",
    ),
    (
        spec(types=("a", "b")),
        "events_by_type (tenant_id=? AND event_type=? AND rowid>? AND rowid<?)",
    ),
    (spec(stream=("a", "b")), STREAM),
    (
        spec(correlation_id="c", types=("a.*",), stream=("a", "b")),
        "events_by_correlation (tenant_id=? AND correlation_id=? AND rowid>? AND rowid<?)",
    ),
    (
        spec(causation_id="c"),
        "events_by_causation (tenant_id=? AND causation_id=? AND rowid>? AND rowid<?)",
    ),
    (
        spec(actor_id="a", types=("b",)),
        "events_by_actor (tenant_id=? AND actor_id=? AND rowid>? AND rowid<?)",
    ),
    (spec(actor_id="a", stream=("a", "b")), STREAM),
    (
        spec(stream=("a", "b"), types=("a",)),
        "events_by_stream_type (stream_key=? AND event_type=? AND rowid>? AND rowid<?)",
    ),
]


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(("asked", "index"), SPECS)
def test_reads_use_their_index(
    connection: sqlite3.Connection, asked: ReadSpec, index: str, back: bool
) -> None:
    """F7: reads by stream, tenant, type and other fields use their index without a sort."""
    for walk in queries.plan_read_scans(asked):
        check_scan(connection, walk, index, back=back)


def check_scan(connection: sqlite3.Connection, walk: IndexScan, index: str, *, back: bool) -> None:
    """Check the plan of one scan; a stream's first events are scanned by number for a type."""
    if walk.until_seq == UNINDEXED_SEQ_MAX:
        index = STREAM
    check_plan(plan(connection, walk.build_sql(newest_first=back), {**walk.values, **RANGE}), index)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(
    ("query", "index"),
    [
        (MATCH_ALL, "events_by_tenant"),
        (Query([Filter(payload=[{"a": "b"}, {"c": 1}])]), "events_by_tenant"),
        (Query([Filter(types=["a"], payload=[{"a": "b"}])]), "events_by_type"),
        (Query([Filter(types=["a"]), Filter(types=["b"])]), "events_by_type"),
        (Query([Filter(streams=[("a", "b")])]), "events_by_stream "),
        (Query([Filter(streams=[("a", "b")], types=["a"])]), "events_by_stream_type"),
        (
            Query([Filter(tags=["a"])]),
            "tagged USING PRIMARY KEY (tag_key=? AND position>? AND position<?)",
        ),
        (
            Query([Filter(tags=["a", "b"], types=["a"], streams=[("a", "b")])]),
            "tagged USING PRIMARY KEY (tag_key=? AND position>? AND position<?)",
        ),
        (
            Query([Filter(types=["indexed"], payload=[{"x": 1}, {"x": "y"}])]),
            "tagged USING PRIMARY KEY (tag_key=? AND position>? AND position<?)",
        ),
        (
            Query([Filter(types=["indexed"], payload=[{"x": 1}], tags=["a"])]),
            "tagged USING PRIMARY KEY (tag_key=? AND position>? AND position<?)",
        ),
    ],
)
def test_queries_use_the_narrowest_index(
    connection: sqlite3.Connection, query: Query, index: str, back: bool
) -> None:
    """F7: the records and version of a query come from the narrowest index, without a sort."""
    walks = queries.plan_query_scans("default", query, RULES, 0, 9)
    assert walks
    for walk in walks:
        check_scan(connection, walk, index, back=back)


def test_predicates_have_a_text_prefilter() -> None:
    """D3: the prefilter of a predicate consists of fragments with one canonical text."""
    sql, values = payload_predicates.build_condition(
        [{"a": "b", "n": 1, "deep": [{"x": None}, True, 1.5]}]
    )
    fragments = {text for name, text in values.items() if name.startswith("fragment")}
    assert fragments == {'"a":"b"', '"deep":', '"x":null', '"n":'}
    assert sql.endswith("payload_matches(:predicates, events.payload)")
    assert (
        payload_predicates.build_condition([{"a": "b"}, 1])[0]
        == "payload_matches(:predicates, events.payload)"
    )
