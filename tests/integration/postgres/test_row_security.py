"""K2: row-level security isolates tenants even if a statement lacks its filter.

Each read is broken on purpose, so that only row-level security separates the tenants; then it is
disabled, to prove that the broken read would return foreign rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import seriatim
from seriatim import (
    Command,
    ExpectedContext,
    ExpectedSeq,
    Filter,
    NewEvent,
    Query,
    RetryPolicy,
    Settings,
)
from seriatim.core import query_plan
from seriatim.core.ids import stream_key, tag_key
from seriatim.store.port import EventTypeRange, ReadSpec, ServiceStore, Store
from seriatim.store.postgres import index_scans
from seriatim.store.postgres import store as store_module
from seriatim.store.postgres.migrate import grant, migrate
from seriatim.store.postgres.reader import TenantReader
from seriatim.store.postgres.store import PostgresStore
from tests.fixtures.postgres_server import PostgresServer
from tests.integration.postgres.conftest import as_role, role_of

MakeRole = Callable[..., str]
TABLES = ["events", "event_tags", "commands", "cursors", "leases", "skipped_batches"]
STREAM = ("cart", "1")
OURS, THEIRS = "ours", "theirs"
TENANT = re.compile(r"(?:\w\.)?tenant_id = (%s|%\(\w+\)s)")


@pytest.fixture(params=["application", "owner"])
def urls(
    request: pytest.FixtureRequest, postgres_server: PostgresServer, make_role: MakeRole
) -> Iterator[tuple[str, str]]:
    """A log of two tenants for a plain role (also as its owner) and for a superuser."""
    name, role = f"row_security_{request.param}", make_role()
    admin = postgres_server.create_database(name)
    if request.param == "owner":
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(f"alter database {name} owner to {role}".encode())
        migrate(as_role(admin, role))
    else:
        migrate(admin)
        grant(admin, role)
    fill(as_role(admin, role))
    yield as_role(admin, role), admin
    postgres_server.drop_database(name)


def fill(url: str) -> None:
    """Give two tenants the same data: a stream with a tag, a command, cursors and a lease."""
    with seriatim.open(url) as log:
        for tenant in (OURS, THEIRS):
            view = log.for_tenant(tenant)
            events = [
                NewEvent(
                    "filled", {"of": tenant}, stream=STREAM, event_id=f"e-{tenant}", tags=("red",)
                ),
                NewEvent("filled", {"of": tenant}, stream=STREAM),
            ]
            command = Command(actor="a", endpoint="/x", key="1", response=1)
            view.append(events, command=command)
            list(view.subscribe(tenant, idle_timeout=0.0, poll_s=0.01))
            skipping: dict[str, Any] = {"retry": RetryPolicy(attempts=1), "on_poison": "skip"}
            view.subscribe("skipping", idle_timeout=0.0, **skipping).run(_refuse)


def _refuse(_: object) -> None:
    raise ValueError("refused")


def reader_of(log: seriatim.Log) -> TenantReader:
    """Return the reader of the store."""
    assert isinstance(log.store, PostgresStore)
    return log.store._reader


def service_store_of(log: seriatim.Log) -> ServiceStore:
    """Return the store, with the reads of services."""
    assert isinstance(log.store, PostgresStore)
    return log.store


@contextmanager
def row_security_disabled(admin: str) -> Iterator[None]:
    """Disable row-level security during the `with` block."""
    with psycopg.connect(admin, autocommit=True) as connection:
        for table in TABLES:
            connection.execute(f"alter table seriatim.{table} disable row level security".encode())
        yield
        for table in TABLES:
            connection.execute(f"alter table seriatim.{table} enable row level security".encode())


@pytest.fixture
def missing_tenant_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the tenant filter from every statement, and use the other tenant's keys."""
    fetch_rows = TenantReader.fetch_rows

    def rows(
        self: TenantReader, tenant_id: str | None, text: str, parameters: Any = (), **options: Any
    ) -> Any:
        text = TENANT.sub(r"\1::text is not null", text)
        return fetch_rows(self, tenant_id, text, parameters, **options)

    monkeypatch.setattr(TenantReader, "fetch_rows", rows)
    for module in (store_module, index_scans):
        monkeypatch.setattr(module, "stream_key", lambda _, *names: stream_key(THEIRS, *names))
    monkeypatch.setattr(query_plan, "tag_key", lambda _, tag: tag_key(THEIRS, tag))


def select(store: Store, **wanted: Any) -> list[Any]:
    """Return the records of a query of our tenant."""
    return store.select(OURS, Query([Filter(**wanted)]), 0, 100, 100)


def version(store: Store, **wanted: Any) -> list[Any]:
    """Return the version of a context of our tenant, if it has one."""
    found = store.context_version(OURS, Query([Filter(**wanted)]), 100)
    return [] if found is None else [found]


READS: dict[str, Callable[[ServiceStore], list[Any]]] = {
    "read": lambda store: store.read(ReadSpec(tenant_id=OURS, limit=100)),
    "read a type": lambda store: store.read(ReadSpec(tenant_id=OURS, limit=100, types=("filled",))),
    "read a stream": lambda store: store.read(ReadSpec(tenant_id=OURS, limit=100, stream=STREAM)),
    "event": lambda store: [store.event(OURS, "e-theirs")],
    "last of a stream": lambda store: [store.last_of_stream(OURS, STREAM)],
    "last of streams": lambda store: store.last_of_streams(OURS, [STREAM, STREAM]),
    "streams": lambda store: store.streams(OURS, None, 0, 100).streams,
    "event types": lambda store: store.event_types(OURS, EventTypeRange("", "", 100)),
    "query by type": lambda store: select(store, types=["filled"]),
    "query by tag": lambda store: select(store, tags=["red"]),
    "query by stream": lambda store: select(store, streams=[STREAM]),
    "query by payload": lambda store: select(store, payload=[{"of": THEIRS}]),
    "context by type": lambda store: version(store, types=["filled"]),
    "context by tag": lambda store: version(store, tags=["red"]),
    "context by payload": lambda store: version(store, payload=[{"of": THEIRS}]),
    "cursor": lambda store: [store.cursor(OURS, "subscription", THEIRS)],
    "cursors": lambda store: store.cursors(OURS, "subscription"),
    "subscriptions": lambda store: store.subscriptions(OURS, "", 100),
    "skipped batches": lambda store: store.skipped_batches(OURS, "skipping", 0, 100),
}


def foreign(found: list[Any]) -> list[Any]:
    """Return the results that are not ours; our events are the first two of the log."""
    return [
        one
        for one in found
        if one is not None
        and (
            one > 2
            if isinstance(one, int)
            else getattr(one, "tenant_id", OURS) == THEIRS or _position(one) > 2
        )
    ]


def _position(entry: Any) -> int:
    """Return the position by which an entry of a listing is known, 1 if it has none."""
    position: int = getattr(entry, "first_position", getattr(entry, "last_position", 1))
    return position


@pytest.mark.usefixtures("missing_tenant_filter")
def test_read_without_a_tenant_filter_returns_no_foreign_row(urls: tuple[str, str]) -> None:
    """K2: reads without their tenant filter return foreign rows only without row-level security."""
    url, admin = urls
    with seriatim.open(url) as log:
        protected = {name: foreign(read(service_store_of(log))) for name, read in READS.items()}
        with row_security_disabled(admin):
            exposed = {name for name, read in READS.items() if foreign(read(service_store_of(log)))}

    assert protected == {name: [] for name in READS}
    assert exposed == set(READS)


@pytest.mark.parametrize("table", [*TABLES, "readable_events"])
def test_confined_transaction_sees_one_tenant(urls: tuple[str, str], table: str) -> None:
    """K2: in a transaction confined to a tenant every table has that tenant's rows alone."""
    url, admin = urls
    text = f"select t::text from seriatim.{table} t"
    with seriatim.open(url) as log:
        reader = reader_of(log)
        ours, theirs, all_rows = (reader.fetch_rows(one, text) for one in (OURS, THEIRS, None))
        nobody = reader.fetch_rows("nobody", text)
        with row_security_disabled(admin):
            open_rows = reader.fetch_rows(OURS, text)

    assert nobody == []
    assert len(ours) == len(theirs) > 0
    assert sorted(ours + theirs) == sorted(all_rows)
    # The view filters by itself, as it may belong to a role that bypasses the policies.
    assert open_rows == (ours if table == "readable_events" else all_rows)


def test_transaction_without_a_tenant_sees_all(urls: tuple[str, str]) -> None:
    """K2, F3: a transaction without a tenant reads all tenants, as older programs do."""
    url, _ = urls
    with psycopg.connect(url) as connection, seriatim.open(url) as log:
        tenants = connection.execute("select distinct tenant_id from seriatim.events order by 1")

        assert tenants.fetchall() == [(OURS,), (THEIRS,)]
        assert len(log.store.read(ReadSpec(tenant_id=None, limit=100))) == 4
        assert log.head() == 4


def test_tenant_setting_ends_with_its_read(urls: tuple[str, str]) -> None:
    """K2: the tenant of a read does not apply to later transactions of its connection."""
    url, _ = urls
    query = "select current_setting('seriatim.tenant', true)"
    with seriatim.open(url, settings=Settings(pool_size=1)) as log:
        reader = reader_of(log)
        settings = [reader.fetch_rows(tenant, query)[0][0] for tenant in (OURS, None, THEIRS, None)]
        with pytest.raises(seriatim.BackendFailure):
            reader.fetch_rows(OURS, "select 1 / 0")
        settings.append(reader.fetch_rows(None, query)[0][0])

        assert [one or None for one in settings] == [OURS, None, THEIRS, None, None]
        assert log.head() == 4


def test_tenants_append_with_row_security(urls: tuple[str, str]) -> None:
    """K2, B9: plain roles append for several tenants, with conditions on each tenant's events."""
    url, _ = urls
    red = Query([Filter(tags=["red"])])
    with seriatim.open(url) as log:
        for round_nr in range(3):
            for tenant in (OURS, THEIRS, "third"):
                view = log.for_tenant(tenant)
                seen = view.query(red).context_version
                event = NewEvent("filled", {"n": round_nr}, tags=("red",))
                view.append([event], ExpectedContext(red, seen), idempotency_key=f"k-{round_nr}")
                with pytest.raises(seriatim.ConditionalAppendConflict):
                    view.append([event], ExpectedContext(red, seen))
                assert view.append([event], idempotency_key=f"k-{round_nr}").replayed
                last = view.last_event(STREAM)
                seq = None if last is None else last.stream_seq
                view.append([NewEvent("filled", {}, stream=STREAM)], ExpectedSeq(STREAM, seq))
            log.for_tenant(OURS).append([NewEvent("many", {"n": n}) for n in range(100)])
        counts = {one: len(list(log.for_tenant(one).read())) for one in (OURS, THEIRS, "third")}

        assert counts == {OURS: 308, THEIRS: 8, "third": 6}
        assert log.head() == sum(counts.values())


def test_confined_caller_may_not_append(urls: tuple[str, str]) -> None:
    """K2, B12: an append in a caller's transaction that is confined to a tenant is refused."""
    url, _ = urls
    with seriatim.open(url) as log, psycopg.connect(url) as caller:
        caller.execute("select set_config('seriatim.tenant', %s, true)", (OURS,))
        with pytest.raises(seriatim.InvalidArgument, match="sees all tenants"):
            log.append([NewEvent("mine", {})], connection=caller)
        caller.rollback()
        log.append([NewEvent("mine", {})], connection=caller)
        caller.commit()

        assert log.head() == 5


@pytest.mark.parametrize("urls", ["owner"], indirect=True)
def test_plain_owner_dumps_the_whole_log(
    postgres_server: PostgresServer, urls: tuple[str, str]
) -> None:
    """K2, F9: pg_dump of a plain owner fails, and with --enable-row-security dumps all events."""
    database, role = urls[0].rsplit("/", 1)[1], role_of(urls[0])
    dump = postgres_server.home / "owner.dump"
    arguments: list[str | Path] = ["-U", role, "-Fc", "-f", dump, database]

    refused = postgres_server.run_tool("pg_dump", *arguments, check=False)
    postgres_server.run_tool("pg_dump", "--enable-row-security", *arguments)
    restored = postgres_server.create_database("row_security_restored")
    postgres_server.run_tool("pg_restore", "-d", "row_security_restored", dump)
    with seriatim.open(restored) as log:
        assert [len(list(log.for_tenant(one).read())) for one in (OURS, THEIRS)] == [2, 2]
    postgres_server.drop_database("row_security_restored")

    assert "row-level security" in refused.stderr
