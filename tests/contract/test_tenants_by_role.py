"""K2 for each kind of database role, with and without row-level security.

The contract suite connects as an application does, whose reads row-level security confines: a
statement without its tenant filter returns nothing foreign there. Here the same tests also run
under roles that bypass it, a superuser and one with BYPASSRLS, where only filters isolate tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

import seriatim
from seriatim import Command, Filter, Log, NewEvent, PayloadIndex, Query, RetryPolicy, testing
from seriatim.core.event import EventRecord
from seriatim.testing.factories import trace
from tests.fixtures.service import run_service

ROLES = {
    "superuser": "postgres_url",
    "bypassing": "bypassing_url",
    "confined": "application_url",
}
BYPASSING = ["superuser", "bypassing"]
OURS, THEIRS = "ours", "theirs"
STREAM = ("order", "1")


def url_of(request: pytest.FixtureRequest, role: str) -> str:
    """Return the URL of a fresh log under a role."""
    return str(request.getfixturevalue(ROLES[role]))


@pytest.fixture(params=[f"{via}-{role}" for role in BYPASSING for via in ("library", "http")])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    """An empty log under a role that bypasses row-level security, directly and over HTTP."""
    via, role = request.param.split("-")
    with ExitStack() as stack:
        if via == "library":
            yield stack.enter_context(seriatim.open(url_of(request, role)))
            return
        access = f"sqlite:///{tmp_path}/tokens.db"
        service = stack.enter_context(run_service(url_of(request, role), access))
        yield stack.enter_context(seriatim.open(service.url, token=service.token()))


class TestTenantWithoutRowSecurity(testing.TenantContract):
    """K2 within the library, by the filters of statements alone."""


@pytest.mark.parametrize(("role", "seen"), [("superuser", 2), ("bypassing", 2), ("confined", 1)])
def test_roles_have_the_expected_row_security(
    request: pytest.FixtureRequest, role: str, seen: int
) -> None:
    """K2: row-level security hides other tenants from one role, and not from two."""
    url = url_of(request, role)
    with seriatim.open(url) as opened:
        for tenant in (OURS, THEIRS):
            opened.for_tenant(tenant).append([NewEvent("noted")])
    with psycopg.connect(url) as connection:
        connection.execute("select set_config('seriatim.tenant', %s, true)", [OURS])
        count = connection.execute("select count(*) from seriatim.events").fetchone()

    assert count == (seen,)


def fill(view: Log, tenant: str) -> None:
    """Give a tenant data under the same names as the other; payloads name their tenant."""
    facts: dict[str, Any] = {"payload": {"of": tenant, "seat": "1A"}, "tags": ("red",)}
    common: dict[str, Any] = {"app_id": "app", "env_id": "env", "correlation_id": "c", **facts}
    command = Command(actor="a", endpoint="/x", key="1", response=tenant)
    view.append([NewEvent("noted", stream=STREAM, event_id="e", **common)], command=command)
    view.append([NewEvent("noted", stream=("other", "1"), **common), NewEvent("plain", **facts)])
    for one in trace("t")[:2]:
        view.append([one])
    list(view.subscribe("reader", idle_timeout=0.0, poll_s=0.01))
    view.traces.put_projection_cursor("graph", view.head())


def tenants_of(records: list[EventRecord]) -> set[str]:
    """Return the tenants of records."""
    return {record.tenant_id for record in records}


READS: dict[str, Callable[[Log], Any]] = {
    "read": lambda log: tenants_of(list(log.read())),
    "page": lambda log: tenants_of(log.page().records),
    "types": lambda log: tenants_of(list(log.read(types=["noted"]))),
    "several types": lambda log: tenants_of(list(log.read(types=["noted", "plain"]))),
    "stream": lambda log: tenants_of(list(log.read(stream=STREAM))),
    "stream and types": lambda log: tenants_of(list(log.read(stream=STREAM, types=["noted"]))),
    "app and env": lambda log: tenants_of(list(log.read(app_id="app", env_id="env"))),
    "window": lambda log: tenants_of(list(log.read(recorded_after="2000-01-01T00:00:00Z"))),
    "batches": lambda log: tenants_of([one for page in log.read_batches() for one in page]),
    "read_stream": lambda log: tenants_of(list(log.read_stream(STREAM))),
    "last_event": lambda log: {getattr(log.last_event(STREAM), "tenant_id", None)},
    "last of many": lambda log: tenants_of(
        [
            stream
            for stream in log.store.last_of_streams(log.tenant_id, [STREAM, ("other", "1")])
            if stream
        ]
    ),
    "event": lambda log: {log.event("e").tenant_id},
    "every query": lambda log: tenants_of(log.query().records),
    "query by type": lambda log: tenants_of(log.query(Query([Filter(types=["noted"])])).records),
    "query by tag": lambda log: tenants_of(log.query(Query([Filter(tags=["red"])])).records),
    "query by stream": lambda log: tenants_of(log.query(Query([Filter(streams=[STREAM])])).records),
    "query by payload": lambda log: tenants_of(
        log.query(Query([Filter(payload=[{"seat": "1A"}])])).records
    ),
    "query by an index": lambda log: tenants_of(
        log.query(Query([Filter(types=["noted"], payload=[{"seat": "1A"}])])).records
    ),
    "tail": lambda log: tenants_of(
        [one for group in log.tail(after=0, idle_timeout=0.0, poll_s=0.01) for one in group]
    ),
    "subscription": lambda log: tenants_of(
        [one for b in log.subscribe("new", idle_timeout=0.0, poll_s=0.01) for one in b]
    ),
    "trace": lambda log: tenants_of(list(log.read_stream(("trace", "t")))),
    "traces": lambda log: tenants_of(log.page(scope="traces").records),
    "aggregates": lambda log: tenants_of(log.page(scope="aggregates").records),
}


@pytest.fixture(params=list(ROLES))
def shared(request: pytest.FixtureRequest) -> Iterator[Log]:
    """A log under each role with the same data of two tenants."""
    with seriatim.open(url_of(request, request.param)) as opened:
        opened.declare(PayloadIndex("noted", "seat"))
        for tenant in (OURS, THEIRS):
            fill(opened.for_tenant(tenant), tenant)
        yield opened


def test_every_read_returns_one_tenant(shared: Log) -> None:
    """K2: under every role, every read returns only events of the tenant."""
    found = {
        name: (read(shared.for_tenant(OURS)), read(shared.for_tenant(THEIRS)))
        for name, read in READS.items()
    }

    assert found == {name: ({OURS}, {THEIRS}) for name in READS}


def test_versions_streams_and_cursors_belong_to_one_tenant(shared: Log) -> None:
    """K2: context versions, streams and cursors of a tenant do not depend on the other."""
    ours, theirs = shared.for_tenant(OURS), shared.for_tenant(THEIRS)
    last = [record.position for record in ours.read()][-1]
    queries = [
        Query(),
        Query([Filter(types=["noted"])]),
        Query([Filter(tags=["red"])]),
        Query([Filter(payload=[{"seat": "1A"}])]),
        Query([Filter(streams=[STREAM])]),
    ]
    versions = [ours.query(query).context_version or 0 for query in queries]

    assert max(versions) == last < min(record.position for record in theirs.read())
    assert [len(view.streams()) for view in (ours, theirs)] == [3, 3]
    assert max(one.last_position for one in ours.streams()) <= last
    assert [sum(one.counted for one in view.event_types()) for view in (ours, theirs)] == [
        len(list(view.read())) for view in (ours, theirs)
    ]
    assert max(one.last_position for one in ours.event_types()) == last
    for purpose in ("subscription", "projection"):
        cursors = ours.store.cursors(OURS, purpose)
        assert {cursor.tenant_id for cursor in cursors} <= {OURS}
    assert len(ours.store.cursors(OURS, "subscription")) == 1
    assert [len(view.traces.list_projection_cursors()) for view in (ours, theirs)] == [1, 1]


def test_commands_belong_to_one_tenant(shared: Log) -> None:
    """K2, C5: the same command of two tenants has separate responses."""
    command = Command(actor="a", endpoint="/x", key="1", response="new")
    answers = [
        shared.for_tenant(tenant).append([NewEvent("again")], command=command)
        for tenant in (OURS, THEIRS)
    ]

    assert [(answer.replayed, answer.response) for answer in answers] == [
        (True, OURS),
        (True, THEIRS),
    ]


def test_skipped_batches_belong_to_one_tenant(shared: Log) -> None:
    """K2, E5: subscriptions of one name skip, park and are listed for each tenant alone."""

    def refuse(_: object) -> None:
        raise ValueError("refused")

    policy: dict[str, Any] = {"retry": RetryPolicy(attempts=1), "idle_timeout": 0.0}
    first, second = (shared.for_tenant(tenant) for tenant in ("first", "second"))
    expected = []
    for view in (first, second):
        expected.append(view.append([NewEvent("refused")]).first_position)
        view.subscribe("s", on_poison="skip", **policy).run(refuse)
        view.append([NewEvent("refused")])
        view.subscribe("s", **policy).run(refuse)
    second.subscriptions.retry("s")

    for view, position in zip((first, second), expected, strict=True):
        assert [one.first_position for one in view.subscriptions.skipped("s")] == [position]
        assert view.subscriptions.get("s").skipped == 1
    assert first.subscriptions.get("s").status == "parked"
    first.subscriptions.reset("s", 0)
    assert [len(view.subscriptions.skipped("s")) for view in (first, second)] == [0, 1]
