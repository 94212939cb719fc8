"""F7: EXPLAIN shows that statements use their intended indexes.

Pages are kept below what there is to read, as in a log that matters: where a whole answer fits one
page, Postgres may as well collect it through the same index and sort that page. A superuser goes
through row-level security, so the plans are looked at as the application's role has them, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import seriatim
from seriatim import Filter, NewEvent, Query
from seriatim.core.ids import event_key, stream_key
from seriatim.core.indexes import StoredIndex
from seriatim.core.kinds import Rules
from seriatim.core.query_plan import AccessPath, plan_query
from seriatim.store.port import ReadSpec
from seriatim.store.postgres.binary_format import RowArray, RowArrayDumper, encode_uuid_array
from seriatim.store.postgres.index_scans import (
    build_last_position_statement,
    build_read_statement,
    build_route_statement,
)
from seriatim.store.postgres.statements import load_store_statements
from tests.fixtures.postgres_server import PostgresServer
from tests.integration.postgres.conftest import as_role

EVENTS = 24_000
STREAM = ("cart", "c-3")
SCHEMA = "seriatim"
Statement = tuple[str, Any]


def spec(**fields: Any) -> Statement:
    """Return the statement of one page of a read."""
    wanted: dict[str, Any] = {"tenant_id": "small", "limit": 10, "until": EVENTS} | fields
    return build_read_statement(ReadSpec(**wanted), SCHEMA)


def named(name: str, *parameters: Any) -> Statement:
    """Return a statement of `statements.sql`."""
    return load_store_statements(SCHEMA)[name], parameters


def stream() -> uuid.UUID:
    """Return the stream's key."""
    return uuid.UUID(bytes=stream_key("small", *STREAM))


def route(one: Filter, after: int = 0, until: int = EVENTS) -> AccessPath:
    """Return the way along which a filter is followed where two paths are declared."""
    indexes = (StoredIndex("type-3", "n"), StoredIndex("type-3", "m[]"), StoredIndex("type-2", "n"))
    [only] = plan_query("small", Query([one]), Rules((), (), 3, indexes), after, until)
    return only


def found(one: Filter, *, newest_first: bool = False, **bounds: int) -> Statement:
    """Return the statement of a filter's records."""
    along = route(one, **bounds)
    return build_route_statement(SCHEMA, "small", along, 10, newest_first=newest_first)


def last(one: Filter, **bounds: int) -> Statement:
    """Return the statement of a filter's last position."""
    return build_last_position_statement(SCHEMA, "small", route(one, **bounds))


PATHS: list[tuple[str, Callable[[], Statement], str]] = [
    ("last event of a stream", lambda: named("last_of_stream", stream()), "events_stream"),
    (
        "the ends of a group's streams",
        lambda: named("stream_heads", encode_uuid_array([stream().bytes] * 3)),
        "events_stream",
    ),
    ("a stream", lambda: spec(stream=STREAM), "events_stream"),
    ("a stream's rest", lambda: spec(stream=STREAM, after_seq=5), "events_stream"),
    ("tail of a tenant", spec, "events_tenant"),
    ("the end of that tail", lambda: spec(after=EVENTS - 100), "events_tenant"),
    ("tail of a type", lambda: spec(types=("type-3",)), "events_type"),
    ("the end of a type", lambda: spec(types=("type-3",), after=EVENTS - 400), "events_type"),
    (
        "tail of a stream's type",
        lambda: spec(stream=STREAM, types=("type-3",)),
        "events_stream_type",
    ),
    (
        "an event id",
        lambda: named("event_by_id", uuid.UUID(bytes=event_key("id-77")), "small"),
        "events_id",
    ),
    (
        "the ids of a group",
        lambda: named("known_ids", encode_uuid_array([event_key("id-77"), event_key("no")])),
        "events_id",
    ),
    (
        "the keys of a group",
        lambda: named("known_keys", encode_uuid_array([event_key("k-1"), event_key("k-2")])),
        "events_key",
    ),
    (
        "what came since contexts were evaluated",
        lambda: (
            load_store_statements(SCHEMA)["newest_of_tenants"],
            {"tenants": ["small", "large"], "afters": [0, 100], "events": 5000, "bytes": 1 << 23},
        ),
        "events_position",
    ),
    ("the head", lambda: named("head"), "events_position"),
    ("the id at a position", lambda: named("event_id_at", 77), "events_position"),
    ("the events of an append", lambda: named("between", 70, 90), "events_position"),
    ("newest of a tenant", lambda: spec(newest_first=True), "events_tenant"),
    ("older ones", lambda: spec(newest_first=True, until=EVENTS // 2), "events_tenant"),
    ("newest of a type", lambda: spec(types=("type-3",), newest_first=True), "events_type"),
    ("several types", lambda: spec(types=("type-3", "type-2")), "events_type"),
    (
        "newest of several types",
        lambda: spec(types=("type-3", "type-2"), newest_first=True, app_id="x"),
        "events_type",
    ),
    ("newest of a stream", lambda: spec(stream=STREAM, newest_first=True), "events_stream"),
    (
        "newest of a stream's types",
        lambda: spec(stream=STREAM, types=("type-3", "type-2"), newest_first=True),
        "events_stream_type",
    ),
    ("a correlation", lambda: spec(correlation_id="c-3"), "events_correlation"),
    (
        "newest of a correlation's types",
        lambda: spec(correlation_id="c-3", types=("type-3", "type-2"), newest_first=True),
        "events_correlation",
    ),
    ("a causation", lambda: spec(causation_id="c-3", newest_first=True), "events_causation"),
    (
        "a correlation in a stream",
        lambda: spec(correlation_id="c-3", stream=STREAM),
        "events_correlation",
    ),
    ("an actor", lambda: spec(actor_id="a-3", newest_first=True), "events_actor"),
    ("an actor's types", lambda: spec(actor_id="a-3", types=("type-3", "type-2")), "events_actor"),
    (
        "the types of a pattern",
        lambda: (
            load_store_statements(SCHEMA)["known_types"],
            {"tenant": "small", "first": "type.", "end": "type/", "limit": 65},
        ),
        "events_type",
    ),
    (
        "the last of several types",
        lambda: last(Filter(types=["type-3", "type-2"])),
        "events_type",
    ),
    (
        "newest of a query by types",
        lambda: build_route_statement(
            SCHEMA,
            "small",
            route(Filter(types=["type-3", "type-2"], payload=[{"o": 3}])),
            10,
            newest_first=True,
        ),
        "events_type",
    ),
    ("a query by type", lambda: found(Filter(types=["type-3"])), "events_type"),
    ("the last of a type", lambda: last(Filter(types=["type-3"])), "events_type"),
    (
        "the last of a type that matches a predicate",
        lambda: last(Filter(types=["type-3"], payload=[{"o": 3}])),
        "events_type",
    ),
    ("the last of a tag", lambda: last(Filter(tags=["tag-5"])), "event_tags_key"),
    ("the last of two tags", lambda: last(Filter(tags=["tag-5", "tag-6"])), "event_tags_key"),
    (
        "the last of a declared path",
        lambda: last(Filter(types=["type-3", "type-2"], payload=[{"n": 3}, {"n": 2.0}])),
        "event_tags_key",
    ),
    (
        "the last of declared paths and tags",
        lambda: last(Filter(types=["type-3"], payload=[{"n": 3, "m": [3]}], tags=["tag-3"])),
        "event_tags_key",
    ),
]


@pytest.fixture(scope="module")
def plans_url(postgres_server: PostgresServer, application_template: str) -> Iterator[str]:
    """A log with some ten thousand events of two tenants, analyzed."""
    url = postgres_server.create_database("plans", application_template)
    with seriatim.open(url) as log:
        for start in range(0, EVENTS, 3000):
            # The small tenant's events lie thin among the others'.
            for tenant, share in (("big", 2970), ("small", 30)):
                events = [
                    NewEvent(
                        f"type-{n % 5}",
                        {"n": n},
                        stream=("cart", f"c-{n % 4}"),
                        event_id=f"id-{start + n}",
                        idempotency_key=f"k-{start + n}",
                        tags=(f"tag-{n % 11}",),
                        correlation_id=f"c-{n % 7}" if n % 2 else None,
                        causation_id=f"c-{n % 9}" if n % 3 else None,
                        actor_id=f"a-{n % 13}" if n % 4 else None,
                    )
                    for n in range(share)
                ]
                log.for_tenant(tenant).append(events)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("analyze")
    yield url
    postgres_server.drop_database("plans")


@pytest.fixture(scope="module", params=["superuser", "application", "confined"])
def connection(
    request: pytest.FixtureRequest, plans_url: str, application_template: str
) -> Iterator[psycopg.Connection[Any]]:
    """A connection on which no policy, one that lets all pass, or one that confines is in force."""
    url = plans_url if request.param == "superuser" else as_role(plans_url, application_template)
    with psycopg.connect(url, autocommit=True) as opened:
        opened.adapters.register_dumper(RowArray, RowArrayDumper)
        if request.param == "confined":
            opened.execute("select set_config('seriatim.tenant', 'small', false)")
        yield opened


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every node of a plan."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@pytest.mark.parametrize(("path", "statement", "index"), PATHS, ids=[path for path, _, _ in PATHS])
def test_index_answers(
    connection: psycopg.Connection[Any],
    path: str,
    statement: Callable[[], Statement],
    index: str,
) -> None:
    """F7: no sequential scan, no sort, and the named index."""
    text, parameters = statement()

    row = connection.execute(f"explain (format json) {text}".encode(), parameters).fetchone()

    assert row is not None
    found = list(nodes(row[0][0]["Plan"]))
    kinds = {node["Node Type"] for node in found}
    assert not {kind for kind in kinds if "Seq Scan" in kind or "Sort" in kind}, row
    assert index in {node.get("Index Name") for node in found}, row


def test_a_stream_bounds_the_read_of_an_actor(connection: psycopg.Connection[Any]) -> None:
    """F7, E7: an actor's events in a stream are found by the stream's index."""
    text, parameters = spec(actor_id="a-3", stream=STREAM)

    row = connection.execute(f"explain (format json) {text}".encode(), parameters).fetchone()

    assert row is not None
    indexes = {node.get("Index Name") for node in nodes(row[0][0]["Plan"])} - {None}
    assert indexes == {"events_stream"}, row


def test_index_answers_with_one_tenant_too(connection: psycopg.Connection[Any]) -> None:
    """F7: for the tenant that has most of the log, too, tails need neither scan nor sort."""
    for fields in ({}, {"types": ("type-3",)}, {"after": EVENTS - 100}):
        text, parameters = spec(tenant_id="big", **fields)
        row = connection.execute(f"explain (format json) {text}".encode(), parameters).fetchone()
        assert row is not None
        kinds = {node["Node Type"] for node in nodes(row[0][0]["Plan"])}
        assert not {kind for kind in kinds if "Seq Scan" in kind or "Sort" in kind}, row


def test_policy_is_not_counted(connection: psycopg.Connection[Any]) -> None:
    """F7, K2: the planner's row estimates are correct under every policy.

    Where it expects fewer than a page, it collects and sorts a tenant's events for every page.
    """
    text, parameters = spec()
    row = connection.execute(f"explain (format json) {text}".encode(), parameters).fetchone()

    assert row is not None
    [scan] = [one for one in nodes(row[0][0]["Plan"]) if one.get("Index Name") == "events_tenant"]
    assert 0.9 * EVENTS / 100 < scan["Plan Rows"] < 1.1 * EVENTS / 100


@pytest.mark.parametrize("role", ["superuser", "application"])
def test_append_looks_at_few_rows(plans_url: str, application_template: str, role: str) -> None:
    """F7, K2: lookups of appends and triggers use indexes, also under a policy."""
    url = plans_url if role == "superuser" else as_role(plans_url, application_template)
    with seriatim.open(url) as log, psycopg.connect(url) as caller:
        event = NewEvent("type-3", {"n": 1}, stream=STREAM, tags=("tag-5",))
        log.for_tenant("small").append([event], connection=caller)
        looked = caller.execute(
            "select seq_tup_read, idx_tup_fetch from pg_stat_xact_user_tables"
            " where schemaname = 'seriatim' and relname = 'events'"
        ).fetchone()
        caller.rollback()

    assert looked is not None
    assert looked[0] == 0
    assert looked[1] < 20


@pytest.mark.parametrize(
    "statement",
    [
        lambda: spec(stream=STREAM, after=EVENTS // 2),
        lambda: spec(stream=STREAM, after=EVENTS // 2, until_head=True),
        lambda: spec(stream=STREAM, until=EVENTS // 2, newest_first=True),
        lambda: spec(stream=STREAM, after=EVENTS // 2, until=EVENTS // 2 + 1),
        lambda: spec(stream=STREAM, after=EVENTS // 2, until=EVENTS // 2 + 1, newest_first=True),
        lambda: found(Filter(streams=[STREAM]), after=EVENTS // 2),
        lambda: found(Filter(streams=[STREAM]), until=EVENTS // 2, newest_first=True),
        lambda: last(Filter(streams=[STREAM]), after=EVENTS - 100),
    ],
)
def test_reads_within_a_stream_pass_over_few_events(
    connection: psycopg.Connection[Any], statement: Callable[[], Statement]
) -> None:
    """F7, E7: a read in the middle of a stream finds its place by a binary search."""
    text, parameters = statement()
    connection.execute("set enable_sort = off")  # as for all reads in the order of an index

    row = connection.execute(
        f"explain (analyze, format json) {text}".encode(), parameters
    ).fetchone()

    assert row is not None
    plan = list(nodes(row[0][0]["Plan"]))
    assert not [one for one in plan if "Sort" in one["Node Type"]], row
    scans = [one for one in plan if one.get("Relation Name") == "events"]
    assert {one["Index Name"] for one in scans} == {"events_stream"}, row
    rows = [one["Actual Rows"] + one.get("Rows Removed by Filter", 0) for one in scans]
    assert max(rows) <= 10, row
