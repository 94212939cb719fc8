"""F7: EXPLAIN shows that statements use their intended indexes.

A page is smaller than the matching events, as in a large log: if all matches fit in one page,
Postgres may read them through the same index and sort them. A superuser bypasses row-level
security, so the plans are also checked under the application's role.
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
from seriatim.store.port import EventTypeRange, ReadSpec
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
RARE = 2963  # the event of each large append that has a rare type, in this stream
SCHEMA = "seriatim"
Statement = tuple[str, Any]


def spec(**fields: object) -> Statement:
    """Return the statement of one page of a read."""
    wanted: dict[str, Any] = {"tenant_id": "small", "limit": 10, "until": EVENTS} | fields
    return build_read_statement(ReadSpec(**wanted), SCHEMA)


def statement_named(name: str, *parameters: Any) -> Statement:
    """Return a statement of `statements.sql`."""
    return load_store_statements(SCHEMA)[name], parameters


def stream_uuid() -> uuid.UUID:
    """Return the stream's key."""
    return uuid.UUID(bytes=stream_key("small", *STREAM))


def access_path(one: Filter, after: int = 0, until: int = EVENTS) -> AccessPath:
    """Return the access path of a filter where three payload indexes are declared."""
    indexes = (StoredIndex("type-3", "n"), StoredIndex("type-3", "m[]"), StoredIndex("type-2", "n"))
    [only] = plan_query("small", Query([one]), Rules((), (), 3, indexes), after, until)
    return only


def records_statement(one: Filter, *, newest_first: bool = False, **bounds: int) -> Statement:
    """Return the statement of a filter's records."""
    path = access_path(one, **bounds)
    return build_route_statement(SCHEMA, "small", path, 10, newest_first=newest_first)


def last_position_statement(one: Filter, **bounds: int) -> Statement:
    """Return the statement of a filter's last position."""
    return build_last_position_statement(SCHEMA, "small", access_path(one, **bounds))


PATHS: list[tuple[str, Callable[[], Statement], str]] = [
    (
        "last event of a stream",
        lambda: statement_named("find_last_event", stream_uuid()),
        "events_stream",
    ),
    (
        "the ends of a group's streams",
        lambda: statement_named("find_stream_heads", encode_uuid_array([stream_uuid().bytes] * 3)),
        "events_stream",
    ),
    ("a stream", lambda: spec(stream=STREAM), "events_stream"),
    ("a stream's rest", lambda: spec(stream=STREAM, after_seq=5), "events_stream"),
    ("tail of a tenant", spec, "events_tenant"),
    ("the end of that tail", lambda: spec(after=EVENTS - 100), "events_tenant"),
    ("tail of a type", lambda: spec(types=("type-3",)), "events_type"),
    ("the end of a type", lambda: spec(types=("type-3",), after=EVENTS - 400), "events_type"),
    (
        "an event id",
        lambda: statement_named("find_event_by_id", uuid.UUID(bytes=event_key("id-77")), "small"),
        "events_id",
    ),
    (
        "the ids of a group",
        lambda: statement_named(
            "find_stored_ids", encode_uuid_array([event_key("id-77"), event_key("no")])
        ),
        "events_id",
    ),
    (
        "the keys of a group",
        lambda: statement_named(
            "find_stored_keys", encode_uuid_array([event_key("k-1"), event_key("k-2")])
        ),
        "events_key",
    ),
    (
        "what came since contexts were evaluated",
        lambda: (
            load_store_statements(SCHEMA)["list_newest_events"],
            {"tenants": ["small", "large"], "afters": [0, 100], "events": 5000, "bytes": 1 << 23},
        ),
        "events_position",
    ),
    ("the head", lambda: statement_named("select_head"), "events_position"),
    ("the id at a position", lambda: statement_named("find_event_id", 77), "events_position"),
    (
        "the events of an append",
        lambda: statement_named("list_events_in_range", 70, 90),
        "events_position",
    ),
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
            load_store_statements(SCHEMA)["list_event_types"],
            {"tenant": "small", "first": "type.", "end": "type/", "limit": 65},
        ),
        "events_type",
    ),
    (
        "the last of several types",
        lambda: last_position_statement(Filter(types=["type-3", "type-2"])),
        "events_type",
    ),
    (
        "newest of a query by types",
        lambda: build_route_statement(
            SCHEMA,
            "small",
            access_path(Filter(types=["type-3", "type-2"], payload=[{"o": 3}])),
            10,
            newest_first=True,
        ),
        "events_type",
    ),
    ("a query by type", lambda: records_statement(Filter(types=["type-3"])), "events_type"),
    (
        "the last of a type",
        lambda: last_position_statement(Filter(types=["type-3"])),
        "events_type",
    ),
    (
        "a query by correlation",
        lambda: records_statement(Filter(correlation_id="c-3")),
        "events_correlation",
    ),
    (
        "a query by correlation with every other side",
        lambda: records_statement(
            Filter(
                types=["type-3", "type-2"],
                payload=[{"n": 3}],
                tags=["tag-5"],
                streams=[STREAM, ("cart", "c-2")],
                correlation_id="c-3",
                actor_id="a-3",
            )
        ),
        "events_correlation",
    ),
    (
        "the last of a causation with a tag",
        lambda: last_position_statement(Filter(causation_id="c-3", tags=["tag-5"])),
        "events_causation",
    ),
    (
        "a query by actor and types",
        lambda: records_statement(Filter(types=["type-3", "type-2"], actor_id="a-3")),
        "events_actor",
    ),
    (
        "the last of a type that matches a predicate",
        lambda: last_position_statement(Filter(types=["type-3"], payload=[{"o": 3}])),
        "events_type",
    ),
    (
        "the last of a tag",
        lambda: last_position_statement(Filter(tags=["tag-5"])),
        "event_tags_key",
    ),
    (
        "the last of two tags",
        lambda: last_position_statement(Filter(tags=["tag-5", "tag-6"])),
        "event_tags_key",
    ),
    (
        "the last of a declared path",
        lambda: last_position_statement(
            Filter(types=["type-3", "type-2"], payload=[{"n": 3}, {"n": 2.0}])
        ),
        "event_tags_key",
    ),
    (
        "the last of declared paths and tags",
        lambda: last_position_statement(
            Filter(types=["type-3"], payload=[{"n": 3, "m": [3]}], tags=["tag-3"])
        ),
        "event_tags_key",
    ),
]


@pytest.fixture(scope="module")
def plans_url(postgres_server: PostgresServer, application_template: str) -> Iterator[str]:
    """A log with some ten thousand events of two tenants, analyzed."""
    url = postgres_server.create_database("plans", application_template)
    with seriatim.open(url) as log:
        for start in range(0, EVENTS, 3000):
            # The events of the small tenant are sparse among those of the large one.
            for tenant, share in (("big", 2970), ("small", 30)):
                events = [
                    NewEvent(
                        "rare" if n == RARE else f"type-{n % 5}",
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
    """A connection without a policy, with one that passes all rows, or with one that confines."""
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
def test_statements_use_their_index(
    connection: psycopg.Connection[Any],
    path: str,
    statement: Callable[[], Statement],
    index: str,
) -> None:
    """F7: a statement uses its index, without a sequential scan or a sort."""
    text, parameters = statement()

    row = connection.execute(f"explain (format json) {text}".encode(), parameters).fetchone()

    assert row is not None
    records_statement = list(nodes(row[0][0]["Plan"]))
    kinds = {node["Node Type"] for node in records_statement}
    assert not {kind for kind in kinds if "Seq Scan" in kind or "Sort" in kind}, row
    assert index in {node.get("Index Name") for node in records_statement}, row


TYPES_IN_STREAMS: list[tuple[Callable[[], Statement], set[str]]] = [
    (lambda: spec(stream=STREAM, types=("type-3",)), {"events_stream"}),
    (
        lambda: spec(tenant_id="big", stream=STREAM, types=("rare",)),
        {"events_stream", "events_long_stream"},
    ),
    (
        lambda: spec(
            tenant_id="big",
            stream=STREAM,
            types=("rare", "absent"),
            newest_first=True,
            after=100,
            until=EVENTS // 2,
        ),
        {"events_stream", "events_long_stream"},
    ),
    (
        lambda: build_last_position_statement(
            SCHEMA, "big", access_path(Filter(types=["rare"], streams=[STREAM]), after=500)
        ),
        {"events_stream", "events_long_stream"},
    ),
]


@pytest.mark.parametrize(("statement", "indexes"), TYPES_IN_STREAMS)
def test_types_within_a_stream_use_its_indexes(
    connection: psycopg.Connection[Any], statement: Callable[[], Statement], indexes: set[str]
) -> None:
    """F7: the first events of a stream are scanned; the index by type finds the others."""
    text, parameters = statement()

    with connection.transaction(force_rollback=True):
        connection.execute("set local enable_sort = off")  # as for every read in index order
        row = connection.execute(f"explain (format json) {text}".encode(), parameters).fetchone()

    assert row is not None
    scans = list(nodes(row[0][0]["Plan"]))
    assert not {kind for node in scans if "Seq Scan" in (kind := node["Node Type"])}, row
    assert "Sort" not in {node["Node Type"] for node in scans}, row
    assert {node["Index Name"] for node in scans if "Index Name" in node} == indexes, row


def test_a_stream_bounds_the_read_of_an_actor(connection: psycopg.Connection[Any]) -> None:
    """F7, E7: an actor's events in a stream are found by the stream's index."""
    text, parameters = spec(actor_id="a-3", stream=STREAM)

    row = connection.execute(f"explain (format json) {text}".encode(), parameters).fetchone()

    assert row is not None
    indexes = {node.get("Index Name") for node in nodes(row[0][0]["Plan"])} - {None}
    assert indexes == {"events_stream"}, row


def test_statements_of_the_largest_tenant_use_indexes(connection: psycopg.Connection[Any]) -> None:
    """F7: tails of the tenant with most events need no sequential scan and no sort."""
    for fields in ({}, {"types": ("type-3",)}, {"after": EVENTS - 100}):
        text, parameters = spec(tenant_id="big", **fields)
        row = connection.execute(f"explain (format json) {text}".encode(), parameters).fetchone()
        assert row is not None
        kinds = {node["Node Type"] for node in nodes(row[0][0]["Plan"])}
        assert not {kind for kind in kinds if "Seq Scan" in kind or "Sort" in kind}, row


@pytest.mark.parametrize("tenant", ["small", "big"])
@pytest.mark.parametrize("after", ["", "type-1"])
def test_types_are_counted_along_their_index(
    connection: psycopg.Connection[Any], tenant: str, after: str
) -> None:
    """F7, N1: types are listed and counted by their index alone, however many events they have."""
    sql = load_store_statements(SCHEMA)
    values = EventTypeRange("type-", after, 100).as_parameters(tenant)
    with connection.transaction():
        connection.execute(sql["use_index_order"].encode())
        row = connection.execute(
            f"explain (format json) {sql['count_event_types']}".encode(), values
        ).fetchone()

    assert row is not None
    found = list(nodes(row[0][0]["Plan"]))
    kinds = {node["Node Type"] for node in found}
    assert not {kind for kind in kinds if "Seq" in kind or "Sort" in kind or "Bitmap" in kind}, row
    assert {node["Index Name"] for node in found if "Index Name" in node} == {"events_type"}, row


def test_row_estimates_are_independent_of_the_policy(connection: psycopg.Connection[Any]) -> None:
    """F7, K2: the planner's row estimates are correct under every policy.

    With an estimate below a page it would collect and sort a tenant's events for every page.
    """
    text, parameters = spec()
    row = connection.execute(f"explain (format json) {text}".encode(), parameters).fetchone()

    assert row is not None
    [scan] = [
        node for node in nodes(row[0][0]["Plan"]) if node.get("Index Name") == "events_tenant"
    ]
    assert 0.9 * EVENTS / 100 < scan["Plan Rows"] < 1.1 * EVENTS / 100


@pytest.mark.parametrize("role", ["superuser", "application"])
def test_append_reads_few_rows(plans_url: str, application_template: str, role: str) -> None:
    """F7, K2: an append with its triggers reads few rows, by indexes, also under a policy."""
    url = plans_url if role == "superuser" else as_role(plans_url, application_template)
    with seriatim.open(url) as log, psycopg.connect(url) as caller:
        event = NewEvent("type-3", {"n": 1}, stream=STREAM, tags=("tag-5",))
        log.for_tenant("small").append([event], connection=caller)
        counters = caller.execute(
            "select seq_tup_read, idx_tup_fetch from pg_stat_xact_user_tables"
            " where schemaname = 'seriatim' and relname = 'events'"
        ).fetchone()
        caller.rollback()

    assert counters is not None
    assert counters[0] == 0
    assert counters[1] < 20


@pytest.mark.parametrize(
    "statement",
    [
        lambda: spec(stream=STREAM, after=EVENTS // 2),
        lambda: spec(stream=STREAM, after=EVENTS // 2, until_head=True),
        lambda: spec(stream=STREAM, until=EVENTS // 2, newest_first=True),
        lambda: spec(stream=STREAM, after=EVENTS // 2, until=EVENTS // 2 + 1),
        lambda: spec(stream=STREAM, after=EVENTS // 2, until=EVENTS // 2 + 1, newest_first=True),
        lambda: records_statement(Filter(streams=[STREAM]), after=EVENTS // 2),
        lambda: records_statement(Filter(streams=[STREAM]), until=EVENTS // 2, newest_first=True),
        lambda: last_position_statement(Filter(streams=[STREAM]), after=EVENTS - 100),
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
    assert not [node for node in plan if "Sort" in node["Node Type"]], row
    scans = [node for node in plan if node.get("Relation Name") == "events"]
    assert {node["Index Name"] for node in scans} == {"events_stream"}, row
    rows = [node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans]
    assert max(rows) <= 10, row
