"""A task of the sink and its rows, without Spark."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import datasource as ds
from pyspark.sql import types as t

import seriatim
from seriatim import BackendFailure, EventType, InvalidArgument, Settings
from seriatim.pipeline.columns import EVENT_SCHEMA, build_spark_schema
from seriatim.pipeline.record_batches import build_batch
from seriatim.pipeline.sink.frame_writer import SinkCommitMessage, SinkWriter, parse_sink_options
from seriatim.pipeline.sink.row_appender import AppendWindow, RefusedRows, append_rows
from seriatim.pipeline.sink.row_events import EventBuilder, RowMapping, check_columns
from tests.pipeline.event_samples import make_varied_events, read_stored_events

PLAIN = t.StructType().add("event_type", "string").add("payload", "string")


def run(url: str, schema: t.StructType, batch: pa.RecordBatch, **options: str) -> SinkCommitMessage:
    """Run one task."""
    writer = SinkWriter(parse_sink_options({"url": url, **options}), schema, overwrite=False)
    return writer.write(iter([batch]))


def rows(*given: dict[str, Any]) -> pa.RecordBatch:
    """A batch of rows."""
    return pa.RecordBatch.from_pylist(list(given))


def test_a_task_appends_in_order_and_counts(log_url: str) -> None:
    """A task appends thousands of rows in order; a second run reuses them all."""
    schema = t.StructType().add("event_type", "string").add("payload", "string")
    schema = schema.add("stream_type", "string").add("stream_id", "string")
    batch = rows(
        *(
            {"event_type": "a", "payload": f'{{"n":{n}}}', "stream_type": "s", "stream_id": "x"}
            for n in range(2500)
        )
    )
    counts = run(log_url, schema, batch).counts
    assert (counts.appended, counts.reused, counts.refused) == (2500, 0, 0)
    records = read_stored_events(log_url)
    assert [record.payload["n"] for record in records] == list(range(2500))
    assert [record.stream_seq for record in records] == list(range(1, 2501))
    assert len({record.append_position for record in records}) == 2500  # one append per row
    counts = run(log_url, schema, batch).counts
    assert (counts.appended, counts.reused, counts.refused) == (0, 2500, 0)


def test_equal_rows_are_one_event(log_url: str) -> None:
    """Event ids are made of all columns, so equal rows are one event."""
    batch = rows({"event_type": "a", "payload": "{}"}, {"event_type": "a", "payload": "{}"})
    counts = run(log_url, PLAIN, batch).counts
    assert (counts.appended, counts.reused) == (1, 1)


def test_a_refused_row_affects_no_other(log_url: str, tmp_path: Path) -> None:
    """An invalid row affects no other; the file of refused rows is temporary until the commit."""
    batch = rows(
        {"event_type": "a", "payload": '{"n":1}'},
        {"event_type": "a", "payload": "nonsense"},
        {"event_type": "", "payload": "{}"},
        {"event_type": "a", "payload": '{"password":"AKIAIOSFODNN7EXAMPLE"}'},
        {"event_type": "a", "payload": '{"n":2}'},
    )
    written = run(log_url, PLAIN, batch, refused=str(tmp_path / "refused"))
    assert (written.counts.appended, written.counts.refused) == (2, len(written.reasons))
    assert written.file is not None
    assert written.file.endswith(".part")
    assert len(Path(written.file).read_text(encoding="utf-8").splitlines()) == len(written.reasons)
    assert "AKIAIOSFODNN7EXAMPLE" not in str(written.reasons)


def test_policies_for_refused_rows(log_url: str, tmp_path: Path) -> None:
    """Refused rows are kept in a folder, dropped, or fail the job, and are always counted."""
    batch = rows({"event_type": "a", "payload": "{}"}, {"event_type": "a", "payload": "{"})
    report = tmp_path / "report.json"
    for refused in ("", "drop", str(tmp_path / "folder")):
        given = {"url": log_url, "report": str(report)} | ({"refused": refused} if refused else {})
        writer = SinkWriter(parse_sink_options(given), PLAIN, overwrite=False)
        messages: list[ds.WriterCommitMessage | None] = [writer.write(iter([batch])), None]
        if refused:
            writer.commit(messages)
        else:
            with pytest.raises(seriatim.InvalidEvent, match="1 rows were refused, 1 appended"):
                writer.commit(messages)
        report_body = msgspec.json.decode(report.read_bytes())
        assert (report_body["refused"], report_body["appended"] + report_body["reused"]) == (1, 1)
    [kept] = (tmp_path / "folder").iterdir()
    assert kept.suffix == ".jsonl"


def test_rules_changed_during_a_task_keep_the_order(log_url: str, tmp_path: Path) -> None:
    """Event types declared during a task refuse no valid row and keep the order."""
    maker = EventBuilder(PLAIN, RowMapping())
    batch = rows(*({"event_type": "a", "payload": f'{{"n":{n}}}'} for n in range(400)))
    settings = Settings(
        writers=1
    )  # as in a task: with several writers the parts of a window are reordered
    with seriatim.open(log_url, settings=settings) as log, seriatim.open(log_url) as other:
        window = AppendWindow(log, RefusedRows(None))
        for number, row in enumerate(maker.decode_rows(batch)):
            if number in (100, 250):
                other.declare(EventType(event_type=f"new {number}"))
            window.append(row, maker.build_event(row), "default")
        window.finish()
        assert (window.counts.appended, window.counts.refused) == (400, 0)
    assert [record.payload["n"] for record in read_stored_events(log_url)] == list(range(400))


def test_a_failed_database_fails_the_task(tmp_path: Path) -> None:
    """An unavailable log fails the task and refuses no row."""
    maker = EventBuilder(PLAIN, RowMapping())
    row = {"event_type": "a", "payload": "{}"}
    url = f"sqlite:///{tmp_path}/log.db"
    with pytest.raises(BackendFailure):
        append_rows(url, maker, [row], RefusedRows(None), tenant_id="default", guard="default")
    log = seriatim.open(url)
    window = AppendWindow(log, RefusedRows(None))
    log.close()
    with pytest.raises(BackendFailure):
        window.append(row, maker.build_event(row), "default")
    assert window.counts.refused == 0


def test_rows_read_from_a_log_keep_their_fields(log_url: str, tmp_path: Path) -> None:
    """Rows read from a log are written to another with their ids, times and other fields."""
    with seriatim.open(log_url) as log:
        for event in make_varied_events(20):
            log.append([event])
    records = read_stored_events(log_url)
    other = f"sqlite:///{tmp_path}/other.db"
    seriatim.open(other).close()
    counts = run(other, build_spark_schema(), build_batch(records), committed="drop").counts
    assert counts.appended == 20
    own = {"position", "append_position", "recorded_at", "stream_seq", "payload_hash"}
    for old, new in zip(records, read_stored_events(other), strict=True):
        for name in set(EVENT_SCHEMA.names) - own - {"occurred_text"}:
            assert getattr(new, name) == getattr(old, name), name


def test_a_tenant_column_overrides_the_option(log_url: str) -> None:
    """The tenant of a row has priority; the option applies to rows without one."""
    schema = t.StructType([*PLAIN, t.StructField("tenant_id", t.StringType())])
    batch = rows(
        {"event_type": "a", "payload": "{}", "tenant_id": "one"},
        {"event_type": "a", "payload": "{}", "tenant_id": None},
    )
    assert run(log_url, schema, batch, tenant="two").counts.appended == 2
    assert len(read_stored_events(log_url, "one")) == len(read_stored_events(log_url, "two")) == 1


def test_timestamps_and_derived_event_ids() -> None:
    """A timestamp becomes the log's format; equal rows, and only those, have equal ids."""
    schema = t.StructType().add("event_type", "string").add("occurred_at", "timestamp")
    maker = EventBuilder(schema, RowMapping(name="job"))
    row = {"event_type": "a", "occurred_at": datetime(2024, 1, 2, 3, 4, 5, 6, UTC)}
    event = maker.build_event(row)
    assert event.occurred_at == "2024-01-02T03:04:05.000006Z"
    assert event.event_id == maker.build_event(dict(row)).event_id
    assert (
        event.event_id != EventBuilder(schema, RowMapping(name="other")).build_event(row).event_id
    )
    assert event.event_id != maker.build_event({**row, "event_type": "b"}).event_id


def test_backfill_ids_are_made_of_the_source() -> None:
    """I9: a backfill sets its tag, makes ids of the source event, and refuses a missing one."""
    schema = t.StructType().add("event_type", "string").add("source_event_id", "string")
    shape = RowMapping(backfill="prices")
    check_columns(schema, shape)
    maker = EventBuilder(schema, shape)
    event = maker.build_event({"event_type": "a", "source_event_id": "e1"})
    assert event.tags == ("backfill:prices",)
    assert (
        event.event_id == maker.build_event({"event_type": "b", "source_event_id": "e1"}).event_id
    )
    with pytest.raises(seriatim.InvalidEvent, match="source event"):
        maker.build_event({"event_type": "a", "source_event_id": None})


@pytest.mark.parametrize(
    ("columns", "shape", "words"),
    [
        (["colour"], RowMapping(), "no column 'colour'"),
        (["position"], RowMapping(), "position is set by the log alone"),
        (["occurred_text"], RowMapping(), "occurred_text is set by the log alone"),
        (["source_event_id"], RowMapping(), "no column 'source_event_id'"),
        ([], RowMapping(id_columns=("nothing",)), "idColumns contains 'nothing'"),
        ([], RowMapping(backfill="b"), "requires the column source_event_id"),
        (["source_event_id", "event_id"], RowMapping(backfill="b"), "drop event_id"),
    ],
    ids=str,
)
def test_bad_columns_are_refused(columns: list[str], shape: RowMapping, words: str) -> None:
    """L: unknown and missing columns are refused by name."""
    schema = t.StructType([t.StructField(n, t.StringType()) for n in ("event_type", *columns)])
    with pytest.raises(InvalidArgument, match=words):
        check_columns(schema, shape)
    with pytest.raises(InvalidArgument, match="event_type is required"):
        check_columns(t.StructType().add("payload", "string"), RowMapping())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": "x"}, "columns is not an option"),
        ({"guard": "x"}, "guard must be one of"),
        ({"committed": "x"}, "committed must be"),
        ({"tenant": ""}, "tenant must not be empty"),
        ({"backfill": " x"}, "backfill must not start"),
        ({"refused": "s3://bucket/x"}, "refused must be drop, or a folder"),
        ({"url": ""}, "url is required"),
    ],
    ids=str,
)
def test_bad_sink_options_are_refused(options: dict[str, str], words: str) -> None:
    """L: the error names the invalid option."""
    with pytest.raises(InvalidArgument, match=words):
        parse_sink_options({"url": "sqlite:///x.db", **options})
