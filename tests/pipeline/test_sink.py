"""DataFrames written to the log: each row once, also when repeated; refused rows with reasons."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

import seriatim
from seriatim import BackendFailure, NewEvent
from seriatim.pipeline.columns import EVENT_COLUMNS
from seriatim.pipeline.scan.scanner import read_head
from seriatim.pipeline.sink.frame_writer import AppendReport, append_frame
from seriatim.spark import register
from tests.pipeline.event_samples import make_varied_events, read_stored_events

Fill = Callable[..., None]


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def save(frame: DataFrame, url: str, **options: str) -> None:
    """Write with the format, without `append_frame`."""
    frame.write.format("seriatim").options(url=url, **options).mode("append").save()


def test_rows_become_events_once(spark: SparkSession, log_url: str) -> None:
    """Rows of plain columns are appended; writing the same frame again appends nothing."""
    frame = spark.createDataFrame(
        [
            Row(
                event_type="order.placed",
                payload=json.dumps({"n": n}),
                stream_type="order",
                stream_id=f"o-{n % 3}",
                tags=[f"n:{n}"],
                metadata={"from": "spark"},
                occurred_at="2024-01-01T00:00:00+02:00",
            )
            for n in range(50)
        ]
    ).repartition(3)
    assert append_frame(frame, log_url) == AppendReport(50, 0, 0)
    assert append_frame(frame, log_url) == AppendReport(0, 50, 0)
    records = read_stored_events(log_url)
    assert sorted(record.payload["n"] for record in records) == list(range(50))
    assert {record.occurred_at for record in records} == {"2024-01-01T00:00:00+02:00"}
    assert {record.metadata["from"] for record in records} == {"spark"}
    assert all(record.tags == (f"n:{record.payload['n']}",) for record in records)
    # The name is part of the event ids, so equal rows of another job are other events.
    assert append_frame(frame.limit(5), log_url, name="other") == AppendReport(5, 0, 0)


def test_payload_types_give_equal_json(spark: SparkSession, log_url: str) -> None:
    """A payload as text, struct or VARIANT gives the same JSON; a map keeps its nulls."""
    texts = spark.createDataFrame([Row(event_type="a", payload='{"x":{"y":[1,2]},"z":"t"}')])
    shape = "struct<x:struct<y:array<int>>,z:string,none:int>"
    frames = {
        "text": texts,
        "struct": texts.withColumn("payload", f.from_json("payload", shape)),
        "variant": texts.withColumn("payload", f.parse_json("payload")),
    }
    for name, frame in frames.items():
        assert append_frame(frame, log_url, name=name).appended == 1, name
    assert {record.payload_json for record in read_stored_events(log_url)} == {
        '{"x":{"y":[1,2]},"z":"t"}'
    }
    maps = spark.createDataFrame([Row(event_type="a", payload={"k": 1, "none": None})])
    append_frame(maps, log_url)
    assert read_stored_events(log_url)[-1].payload_json == '{"k":1,"none":null}'


def test_refused_rows_are_kept_with_reasons(
    spark: SparkSession, log_url: str, tmp_path: Path
) -> None:
    """Valid rows are appended; invalid ones are reported with code, message and row."""
    frame = spark.createDataFrame(
        [
            Row(event_type="good", payload='{"n":1}'),
            Row(event_type="bad json", payload="{"),
            Row(event_type=" bad type", payload="{}"),
            Row(event_type="no object", payload="[1]"),
            Row(event_type="good", payload='{"n":2}'),
        ]
    )
    folder = tmp_path / "refused"
    save(frame, log_url, refused=str(folder), report=str(tmp_path / "report.json"))
    lines = [
        json.loads(line)
        for file in folder.iterdir()
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    assert {file.suffix for file in folder.iterdir()} == {".jsonl"}
    assert {line["row"]["event_type"] for line in lines} == {"bad json", " bad type", "no object"}
    assert all(line["code"] == "invalid_event" and line["message"] for line in lines)
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (report["appended"], report["reused"], report["refused"]) == (2, 0, 3)
    assert len(read_stored_events(log_url)) == 2
    with pytest.raises(PySparkException, match="3 rows were refused, 0 appended, 2 stored"):
        save(frame, log_url)


def test_an_unknown_column_stores_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """L: an unknown column is refused by name before anything is stored."""
    url = f"sqlite:///{tmp_path}/log.db"
    seriatim.open(url).close()
    frame = spark.createDataFrame([Row(event_type="a", colour="red")])
    with pytest.raises(PySparkException, match="no column 'colour'"):
        save(frame, url)
    assert read_stored_events(url) == []


def test_overwriting_a_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """L: the write mode overwrite is refused."""
    url = f"sqlite:///{tmp_path}/log.db"
    seriatim.open(url).close()
    frame = spark.createDataFrame([Row(event_type="a")])
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        frame.write.format("seriatim").option("url", url).mode("overwrite").save()


def test_read_rows_can_be_written_to_another_log(
    spark: SparkSession, fill: Fill, log_url: str, tmp_path: Path
) -> None:
    """Rows read from one log are written to another without the columns set by the log."""
    fill(*make_varied_events(30))
    other = f"sqlite:///{tmp_path}/copy.db"
    seriatim.open(other).close()
    frame = spark.read.format("seriatim").option("url", log_url).load()
    for expected in (AppendReport(30, 0, 0), AppendReport(0, 30, 0)):
        assert append_frame(frame, other, committed="drop") == expected
    kept = [n for n in EVENT_COLUMNS if n in NewEvent.__struct_fields__ and n != "stream_seq"]
    for old, new in zip(by_id(log_url), by_id(other), strict=True):
        assert {n: getattr(new, n) for n in kept} == {n: getattr(old, n) for n in kept}


def by_id(url: str) -> list[Any]:
    """Records in the order of their ids."""
    return sorted(read_stored_events(url), key=lambda record: record.event_id)


def test_a_backfill_is_labelled_and_runs_once(
    spark: SparkSession, fill: Fill, log_url: str
) -> None:
    """I9: events of a backfill carry its tag, and the same backfill again appends nothing."""
    fill(*make_varied_events(10))
    source = spark.read.format("seriatim").option("url", log_url).option("endingPosition", 10)
    frame = source.load().select(
        f.lit("price.corrected").alias("event_type"),
        f.col("event_id").alias("source_event_id"),
        f.struct("position").alias("payload"),
    )
    assert append_frame(frame, log_url, backfill="prices") == AppendReport(10, 0, 0)
    assert append_frame(frame, log_url, backfill="prices") == AppendReport(0, 10, 0)
    added = read_stored_events(log_url)[10:]
    assert len(added) == 10
    assert all(record.tags == ("backfill:prices",) for record in added)
    assert append_frame(frame, log_url, backfill="again").appended == 10


def test_id_columns_need_not_be_event_columns(spark: SparkSession, log_url: str) -> None:
    """Event ids are made of the named columns, which need not be columns of an event."""
    frame = spark.createDataFrame([Row(event_type="a", line=n, payload="{}") for n in range(4)])
    assert append_frame(frame, log_url, idColumns="line") == AppendReport(4, 0, 0)
    changed = frame.withColumn("payload", f.lit("{}"))
    assert append_frame(changed, log_url, idColumns=["line"]) == AppendReport(0, 4, 0)


def test_a_retried_task_appends_no_row_twice(
    spark: SparkSession, log_url: str, tmp_path: Path
) -> None:
    """A job that failed after some rows appends only the missing rows when run again."""
    marker = str(tmp_path / "died")

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        mark = Path(f"{marker}-{context.partitionId() if context else 0}")
        for number, batch in enumerate(batches):
            if number == 12 and not mark.exists():
                mark.touch()
                deadline = time.monotonic() + 200
                while read_head(log_url) == 0 and time.monotonic() < deadline:
                    time.sleep(0.1)  # until the sink has committed some of the rows
                msg = "the worker died"
                raise RuntimeError(msg)
            yield batch

    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    try:
        frame = spark.range(0, 40_000, 1, 2).selectExpr(
            "'a' as event_type", "concat('{\"n\":', id, '}') as payload"
        )
        dying = frame.mapInArrow(die_once, frame.schema)
        with pytest.raises(BackendFailure, match="the worker died"):
            append_frame(dying, log_url)  # local masters try a task once
        before_retry = len(read_stored_events(log_url))
        report = append_frame(dying, log_url)
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(before))
    # A worker may still commit rows after its job has failed; those rows are reused, too.
    assert 0 < before_retry <= report.reused < 40_000
    assert (report.appended + report.reused, report.refused) == (40_000, 0)
    assert sorted(record.payload["n"] for record in read_stored_events(log_url)) == list(
        range(40_000)
    )


def test_a_missing_log_fails_the_job(spark: SparkSession, tmp_path: Path) -> None:
    """L: a sink creates no log and reports the missing one."""
    frame = spark.createDataFrame([Row(event_type="a")])
    with pytest.raises(PySparkException, match="none"):
        save(frame, f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()
