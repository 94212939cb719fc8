"""Scans of a range equal the log, with every kind of filter."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pyarrow as pa
import pytest

from seriatim import NewEvent
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.core.ids import event_key
from seriatim.pipeline.columns import EVENT_COLUMNS, EVENT_SCHEMA
from seriatim.pipeline.record_batches import build_batch, decode_records, pack_records
from seriatim.pipeline.scan import scanner
from seriatim.pipeline.scan import scanner as scanning
from seriatim.pipeline.scan.database import parse_database_url
from seriatim.pipeline.scan.options import KeyPartition
from seriatim.pipeline.scan.scanner import (
    Interval,
    NameFilter,
    ScanSpec,
    count_events,
    read_head,
    read_identity,
    read_log_state,
    scan,
)
from seriatim.pipeline.scan.select_statements import build_count
from seriatim.store.postgres.migrate import migrate
from tests.pipeline.event_samples import make_varied_events, read_stored_events

Fill = Callable[..., None]


def test_a_scan_returns_the_records_of_the_log(log_url: str, fill: Fill) -> None:
    """J1: a scan returns the records of the log in the schema of events."""
    fill(*make_varied_events(200))
    found = list(scan(log_url, ScanSpec(), 0, 200))
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(EVENT_SCHEMA)
    records = [record for batch in found for record in decode_records(batch)]
    assert records == read_stored_events(log_url)


def test_records_encode_to_the_scanned_batch(log_url: str, fill: Fill) -> None:
    """J1: a batch built from records equals the batch of a scan."""
    fill(*make_varied_events(60))
    table = pa.Table.from_batches(scan(log_url, ScanSpec(), 0, 60))
    assert pa.Table.from_batches([build_batch(read_stored_events(log_url))]).equals(table)


def test_columns_may_be_chosen_in_any_order(log_url: str, fill: Fill) -> None:
    """J1: a scan returns the chosen columns in their order, and records have defaults elsewhere."""
    fill(*make_varied_events(9))
    [batch] = scan(log_url, ScanSpec(columns=("payload", "tags", "occurred_at")), 6, 9)
    assert batch.schema.names == ["payload", "tags", "occurred_at"]
    record = next(decode_records(batch))
    assert [record.position] == [None]
    assert (record.metadata, record.tags) == ({}, ("a\\b", "[x]", 'q"'))
    assert record.occurred_at == "2024-02-03T10:00:00.500000Z"  # event 2


def test_key_partitions_are_disjoint(log_url: str, fill: Fill) -> None:
    """J1: every event is in one partition, in order; equal keys are in the same partition."""
    fill(*make_varied_events(100))
    columns = ("tenant_id", "stream_type", "stream_id")
    parts = []
    for nth in range(3):
        batches = scan(log_url, ScanSpec(key_partition=KeyPartition(columns, nth, 3)), 5, 95)
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert [row["position"] for row in rows] == sorted(row["position"] for row in rows)
        parts.append(rows)
    assert sorted(row["position"] for part in parts for row in part) == list(range(6, 96))
    owners = [{tuple(row[name] for name in columns) for row in part} for part in parts]
    assert sum(map(len, owners)) == len(set.union(*owners)) > 3
    assert all(owners)


def test_encoded_records_keep_every_field(log_url: str, fill: Fill) -> None:
    """J1: a record packed into one column keeps every field."""
    fill(*make_varied_events(30))
    [batch] = scan(log_url, ScanSpec(), 0, 30)
    small = pack_records(batch, ("position", "event_type"))
    assert small.schema.names == ["position", "event_type", "record"]
    found = [msgspec.structs.astuple(record) for record in decode_records(small)]
    assert found == [msgspec.structs.astuple(record) for record in decode_records(batch)]
    assert len(found) == 30


@pytest.mark.parametrize("column", EVENT_COLUMNS)
def test_each_column_alone(log_url: str, fill: Fill, column: str) -> None:
    """J1: each column can be read alone, with equal values."""
    fill(*make_varied_events(30))
    whole = pa.Table.from_batches(scan(log_url, ScanSpec(), 0, 30))
    alone = pa.Table.from_batches(scan(log_url, ScanSpec(columns=(column,)), 0, 30))
    assert alone.column(column).equals(whole.column(column))


def test_rarely_used_columns_are_read_without_loss(
    log_url: str, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J1: columns that are rarely set are sent as one column, without loss."""
    plain = [NewEvent(event_type="a", payload={"n": n}) for n in range(40)]
    fill(*plain, *make_varied_events(50), *plain)
    whole = pa.Table.from_batches(scan(log_url, ScanSpec(), 0, 130))
    some = ScanSpec(columns=("causation_id", "occurred_at", "position"))
    monkeypatch.setattr(scanning, "_MIN_SAMPLED_RANGE", 10)
    monkeypatch.setattr(scanner, "_SAMPLE", 3)
    for after, until in ((0, 130), (0, 40), (30, 100), (40, 60), (60, 130)):
        part = whole.slice(after, until - after)
        assert pa.Table.from_batches(scan(log_url, ScanSpec(), after, until)).equals(part)
        assert pa.Table.from_batches(scan(log_url, some, after, until)).equals(
            part.select(list(some.columns))
        )


def test_batches_stay_small(log_url: str, fill: Fill) -> None:
    """J1: a scan of 60 MB returns batches of less than 30 MB."""
    text = "x" * 100_000
    for _ in range(6):
        fill(*(NewEvent(event_type="big", payload={"text": text}) for _ in range(100)))
    sizes = [batch.nbytes for batch in scan(log_url, ScanSpec(), 0, 600)]
    assert sum(sizes) > 60_000_000
    assert max(sizes) < 30_000_000


@pytest.mark.parametrize(
    "wanted",
    [
        ScanSpec(types=NameFilter.parse(["order.*"])),
        ScanSpec(types=NameFilter.parse(["seat taken", "order.paid"])),
        ScanSpec(types=NameFilter(("orders.*", "Ö'\"\\ --"))),
        ScanSpec(types=NameFilter()),
        ScanSpec(stream_types=NameFilter(("séance's",))),
        ScanSpec(stream_ids=NameFilter((), ("o-",))),
        ScanSpec(event_ids=NameFilter(("event/2", "event/5"))),
        ScanSpec(
            tenants=NameFilter(("default",)),
            stream_types=NameFilter(("order",)),
            stream_ids=NameFilter(("o-1",)),
        ),
        ScanSpec(occurred=Interval(None, 1_707_000_000_000_000)),
        ScanSpec(occurred=Interval(1_706_868_000_500_000, 1_707_300_000_500_000)),
        ScanSpec(recorded=Interval(0, 10)),
        ScanSpec(tenants=NameFilter(("other",))),
    ],
    ids=repr,
)
def test_narrowed_scans_equal_filtered_ones(log_url: str, fill: Fill, wanted: ScanSpec) -> None:
    """J1: a scan with a filter equals a full scan filtered in Python, and so does its count."""
    fill(*make_varied_events(100))
    found = [r.position for b in scan(log_url, wanted, 3, 90) for r in decode_records(b)]
    whole = pa.Table.from_batches(scan(log_url, ScanSpec(), 3, 90)).to_pylist()
    assert found == [row["position"] for row in whole if _fits(wanted, row)]
    assert count_events(log_url, wanted, 3, 90) == len(found)


@pytest.mark.parametrize(
    "wanted",
    [
        ScanSpec(tenants=NameFilter(("default",))),
        ScanSpec(tenants=NameFilter(("default",)), types=NameFilter(("order.paid",))),
    ],
    ids=["tenant", "type"],
)
def test_a_count_uses_a_covering_index(log_url: str, fill: Fill, wanted: ScanSpec) -> None:
    """I4: the count of a tenant's events reads only an index."""
    for start in range(0, 5000, 1000):
        fill(*make_varied_events(1000, start))
    statement = build_count(parse_database_url(log_url), wanted, 3, 4990)
    if log_url.startswith("sqlite"):
        with closing(sqlite3.connect(log_url.removeprefix("sqlite:///"))) as session:
            plan = session.execute(f"explain query plan {statement}").fetchall()
        assert "USING COVERING INDEX" in str(plan)
        return
    with psycopg.connect(log_url, autocommit=True) as session:
        session.execute("vacuum analyze seriatim.events")
        plan = session.execute(f"explain (analyze) {statement}").fetchall()
    assert "Index Only Scan" in str(plan)
    assert "Heap Fetches: 0" in str(plan)


def _fits(wanted: ScanSpec, row: dict[str, object]) -> bool:
    for part, column in (
        ("tenants", "tenant_id"),
        ("types", "event_type"),
        ("stream_types", "stream_type"),
        ("stream_ids", "stream_id"),
        ("event_ids", "event_id"),
    ):
        names = getattr(wanted, part)
        value = row[column]
        if names is not None and not (isinstance(value, str) and names.allows(value)):
            return False
    for window, column in ((wanted.occurred, "occurred_at"), (wanted.recorded, "recorded_at")):
        moment = pa.scalar(row[column], pa.timestamp("us", "UTC")).cast(pa.int64()).as_py()
        if window.after is not None and moment <= window.after:
            return False
        if window.until is not None and moment > window.until:
            return False
    return True


def test_intersected_name_filters_allow_common_names() -> None:
    """The intersection of two name filters allows exactly the names that both allow."""
    sides = [
        NameFilter(("a", "b.c", "b.d.e")),
        NameFilter((), ("b.",)),
        NameFilter(("b.x",), ("b.d", "z")),
        NameFilter(),
    ]
    words = ["a", "b.", "b.c", "b.d", "b.d.e", "b.x", "z", "zz", ""]
    for side in sides:
        assert side.intersect(None) == side
        for other in sides:
            both = side.intersect(other)
            for word in words:
                assert both.allows(word) == (side.allows(word) and other.allows(word))


def test_log_state_has_identity_head_and_event_ids(log_url: str, fill: Fill) -> None:
    """F8: the log state has identity, head and the event ids at two positions."""
    assert read_log_state(log_url).head == 0
    assert read_log_state(log_url).event_id_at_until is None
    fill(*make_varied_events(5))
    records = read_stored_events(log_url)
    seen = read_log_state(log_url, 2, 4)
    assert (seen.head, seen.until) == (5, 4) == (read_head(log_url), 4)
    assert (seen.event_id_at, seen.event_id_at_until) == (records[1].event_id, records[3].event_id)
    assert seen.identity == read_identity(log_url)
    assert read_log_state(log_url, 0, 99).event_id_at_until == records[4].event_id


def test_a_log_without_the_range_is_an_error(log_url: str, fill: Fill) -> None:
    """F8: a scan beyond the end of the log is an error, not a shorter result."""
    fill(*make_varied_events(5))
    with pytest.raises(BackendFailure, match="restored or replaced"):
        list(scan(log_url, ScanSpec(), 0, 9))


def test_the_schema_in_the_url_is_used(empty_postgres_url: str) -> None:
    """A log in another schema is found by the schema in the URL."""
    url = f"{empty_postgres_url}?schema=other_log"
    migrate(url)
    assert read_head(url) == 0
    with pytest.raises(BackendFailure, match="seriatim init"):
        read_head(empty_postgres_url)


def test_errors_contain_no_password(postgres_url: str) -> None:
    """K: no error contains a password of the URL, in its message or its cause."""
    for url in (
        "postgresql://u:hunter2@127.0.0.1:1/nothing",
        "postgresql://u:hunter2@127.0.0.1:port/nothing",
        "postgresql://u:hunter2@127.0.0.1:5432/nothing?hunter2=1",
        postgres_url.replace("//postgres@", "//nobody:hunter2@"),
    ):
        with pytest.raises((BackendFailure, InvalidArgument)) as caught:
            read_head(url)
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_invalid_urls_are_refused_with_a_reason(tmp_path: Path) -> None:
    """K: invalid URLs and databases without a log are refused with the reason."""
    for url, words in (
        ("memory:", "another process's memory"),
        ("mysql://x", "unknown backend"),
        (f"sqlite:///{tmp_path}/none.db", "cannot open"),
        ("sqlite://host/x", "a SQLite URL is sqlite:///"),
    ):
        with pytest.raises((BackendFailure, InvalidArgument), match=words):
            read_head(url)
    sqlite3.connect(tmp_path / "empty.db").execute("create table t (x)").connection.close()
    with pytest.raises(BackendFailure, match="contains no log"):
        read_head(f"sqlite:///{tmp_path}/empty.db")


def test_reading_does_not_block_writers(log_url: str, fill: Fill) -> None:
    """A scan blocks no writer and returns its whole range."""
    fill(*make_varied_events(3000))
    reading = scan(log_url, ScanSpec(columns=("position",)), 0, 3000)
    first = next(reading)
    if log_url.startswith("sqlite"):
        other = sqlite3.connect(log_url.removeprefix("sqlite:///"), timeout=1)
        other.execute("update log set epoch = epoch + 1")
        other.commit()
        other.close()
    else:
        with psycopg.connect(log_url) as connection:
            connection.execute("update seriatim.log set epoch = epoch + 1")
    assert first.num_rows + sum(batch.num_rows for batch in reading) == 3000


def test_filter_values_are_never_executed(log_url: str, fill: Fill) -> None:
    """Values of filters are compared, never executed as SQL."""
    fill(*make_varied_events(3))
    for text in ("'); drop table events; --", "\\'", "$$", "{schema}", "{wanted}", "ü€🎈"):
        assert list(scan(log_url, ScanSpec(types=NameFilter((text,), (text,))), 0, 3)) == []
    assert read_log_state(log_url).head == 3


def test_event_ids_are_read_as_they_were_written(log_url: str, fill: Fill) -> None:
    """Canonical UUIDs and other event ids are read as they were written."""
    own = "00112233-4455-6677-8899-aabbccddeeff"
    fill(NewEvent(event_type="a", event_id=own), NewEvent(event_type="a", event_id=own.upper()))
    [batch] = scan(log_url, ScanSpec(columns=("event_id",)), 0, 2)
    assert batch.column(0).to_pylist() == [own, own.upper()]
    assert event_key(own).hex() == own.replace("-", "")
