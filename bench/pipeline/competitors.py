"""Hand-written alternatives: a fold in a Python loop, and a transaction per event."""

from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg

import seriatim
from bench.measurement import Sample, Stopwatch
from bench.pipeline.read_models import fold_order
from seriatim import EventRecord
from seriatim.core.decision_graph import Edge, Node, Precedent, Trace, apply_to_trace, build_graph

_encode = msgspec.json.encode
_decode_trace = msgspec.json.Decoder(Trace).decode

LOOP_TABLE = """
create table if not exists public.loop_orders (
    tenant_id text not null, stream_id text not null, customer text, status text, region text,
    amount_cents bigint, events bigint, position bigint not null,
    primary key (tenant_id, stream_id)
)
"""
GRAPH_TABLES = """
create schema if not exists rival;
create table if not exists rival.nodes (
    node_id text primary key, node_type text, trace_id text, log_seq bigint, created_at text);
create table if not exists rival.edges (
    edge_id text primary key, edge_type text, from_node_id text, to_node_id text, trace_id text,
    log_seq bigint, created_at text);
create table if not exists rival.traces (trace_id text primary key, state text not null);
create table if not exists rival.precedents (
    source_event_id text primary key, log_seq bigint, trace_id text, policy_id text,
    policy_version text, exception_id text, primary_entity_type text, primary_entity_system text,
    primary_entity_id text);
create table if not exists rival.cursor (position bigint not null);
insert into rival.cursor select 0 where not exists (select from rival.cursor);
"""


def fold_in_loop(url: str) -> int:
    """Read the log in one process, fold every order in a dict and write the table.

    The fold and the table are those of the projection on Spark. Returns the number of events.
    """
    states: dict[tuple[str, str], tuple[dict[str, Any], int]] = {}
    count = 0
    with seriatim.open(url) as log:
        for batch in log.read_batches(batch_size=5000):
            for event in batch:
                if event.stream_id is not None:
                    key = event.tenant_id, event.stream_id
                    before = states.get(key)
                    states[key] = fold_order(before and before[0], event), event.position
            count += len(batch)
    with psycopg.connect(url) as session, session.cursor() as cursor:
        cursor.execute(LOOP_TABLE)
        cursor.execute("truncate public.loop_orders")
        with cursor.copy("copy public.loop_orders from stdin") as into:
            for (tenant_id, stream_id), (row, position) in states.items():
                into.write_row((tenant_id, stream_id, *row.values(), position))
    return count


class TransactionPerEventProjector:
    """A projector of the decision graph that uses one transaction per event."""

    def __init__(self, log: seriatim.Log, url: str) -> None:
        self._log = log
        self._session = psycopg.connect(url)
        with self._session.transaction():
            self._session.execute(GRAPH_TABLES)
        self._events = self._read_remaining()

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def run(self, seconds: float) -> Sample:
        """Project for some seconds, or to the end of the log."""
        watch = Stopwatch()
        count = 0
        while watch.seconds < seconds:
            event = next(self._events, None)
            if event is None:
                break
            self._project(event)
            count += 1
        assert count, "the log of traces is too small for the number of rounds"
        return Sample(count, watch.seconds)

    def _read_remaining(self) -> Iterator[EventRecord]:
        with self._session.transaction():
            (position,) = self._session.execute("select position from rival.cursor").fetchone() or (
                0,
            )
        return self._log.read(after=position)

    def _project(self, event: EventRecord) -> None:
        nodes, edges = build_graph(event)
        with self._session.transaction(), self._session.cursor() as cursor:
            _insert(cursor, "nodes", nodes)
            _insert(cursor, "edges", edges)
            row = cursor.execute(
                "select state from rival.traces where trace_id = %s", (event.stream_id,)
            ).fetchone()
            trace = apply_to_trace(_decode_trace(row[0]) if row else None, event)
            cursor.execute(
                "insert into rival.traces values (%s, %s) "
                "on conflict (trace_id) do update set state = excluded.state",
                (trace.trace_id, _encode(trace).decode()),
            )
            if trace.outcome is not None:
                _insert(cursor, "precedents", trace.precedents)
            cursor.execute("update rival.cursor set position = %s", (event.position,))


def _insert(
    cursor: psycopg.Cursor[Any], table: str, rows: "list[Node] | list[Edge] | tuple[Precedent, ...]"
) -> None:
    for row in rows:
        values = msgspec.structs.astuple(row)
        placeholders = ", ".join(["%s"] * len(values))
        cursor.execute(
            f"insert into rival.{table} values ({placeholders}) on conflict do nothing", values
        )
