"""Reads that combine the archive and the log."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import seriatim
from seriatim import NewEvent
from seriatim.core.errors import LogIdentityChanged
from seriatim.pipeline.archive.archiver import archive
from seriatim.pipeline.columns import EVENT_SCHEMA
from seriatim.pipeline.record_batches import decode_records
from seriatim.pipeline.source.dataframe import events
from seriatim.spark import register
from tests.pipeline.event_samples import make_varied_events, read_stored_events

Fill = Callable[..., None]


@pytest.fixture
def sealed(spark: SparkSession, log_url: str, fill: Fill, tmp_path: Path) -> str:
    """An archive of a log's first 60 events, in three segments; the log has 90."""
    register(spark)
    fill(*make_varied_events(60))
    place = str(tmp_path / "an [odd] folder")
    archive(spark, log_url, place, segment_events=25, seal_tail=True)
    fill(*make_varied_events(30, start=60))
    return place


def records(frame: DataFrame) -> list[seriatim.EventRecord]:
    """The records of a frame."""
    table = frame.orderBy("position").toArrow().cast(EVENT_SCHEMA)
    return [record for batch in table.to_batches() for record in decode_records(batch)]


def test_archive_and_log_are_read_as_one(
    spark: SparkSession, log_url: str, sealed: str, fill: Fill
) -> None:
    """J1: for every range and every reader, the events equal those of the log."""
    expected = read_stored_events(log_url)
    reader = spark.read.format("seriatim").options(url=log_url, archive=sealed)
    for after, until in ((0, 90), (0, 60), (10, 30), (55, 70), (60, 90), (70, 80), (30, 30)):
        wanted = [one for one in expected if after < one.position <= until]
        assert records(events(spark, log_url, after=after, until=until, archive=sealed)) == wanted
        by_format = reader.option("startingPosition", after).option("endingPosition", until)
        assert records(by_format.load()) == wanted


def test_filters_apply_to_archive_and_log(spark: SparkSession, log_url: str, sealed: str) -> None:
    """J1: filters apply to the archive as to the log, in both readers."""
    cases: list[dict[str, Any]] = [
        {"types": ["order.*", "seat taken"]},
        {"types": ["Ö'\"\\ --"]},
        {"stream_types": ["order", "séance's"]},
        {"tenant": "default", "stream_types": ["order"], "stream_id": "o-1"},
        {"tenant": "other"},
        {"occurred_until": "2024-02-05T10:00:00.5Z"},
        {"occurred_after": "2024-02-05T10:00:00.5Z", "recorded_after": "2024-01-01T00:00:00Z"},
    ]
    for options in cases:
        plain = records(events(spark, log_url, **options))
        assert records(events(spark, log_url, archive=sealed, **options)) == plain
        by_format: dict[str, str] = {
            name: ",".join(value) if isinstance(value, list) else value
            for name, value in (
                ("types", options.get("types")),
                ("streamType", options.get("stream_types")),
                ("streamId", options.get("stream_id")),
                ("tenant", options.get("tenant")),
                ("occurredUntil", options.get("occurred_until")),
                ("occurredAfter", options.get("occurred_after")),
            )
            if value is not None
        }
        reader = spark.read.format("seriatim").options(url=log_url, archive=sealed, **by_format)
        assert records(reader.load()) == plain


def test_columns_variants_and_marks_with_an_archive(
    spark: SparkSession, log_url: str, sealed: str
) -> None:
    """J1: columns, VARIANT payloads and marks are the same for archived and live events."""
    frame = events(
        spark, log_url, archive=sealed, columns=["payload", "position"], payload="variant"
    )
    assert frame.columns == ["payload", "position"]
    numbers = frame.selectExpr("variant_get(payload, '$.n', 'int') as n").collect()
    assert sorted(row.n for row in numbers) == list(range(90))
    marks = spark.read.format("seriatim").options(url=log_url, archive=sealed, watermarks="true")
    rows = marks.option("types", "none").load().orderBy("position").collect()
    covered = [(row.append_position, row.position) for row in rows]
    assert covered == [(0, 25), (25, 50), (50, 60), (60, 90)]


def test_a_stream_continues_from_archive_to_log(
    spark: SparkSession, log_url: str, sealed: str, tmp_path: Path
) -> None:
    """J1: a stream reads archive and log in batches of the same offsets, without gap."""
    seen: list[list[int]] = []

    def note(frame: DataFrame, _batch: int) -> None:
        seen.append(sorted(row.position for row in frame.select("position").collect()))

    stream = spark.readStream.format("seriatim").options(
        url=log_url, archive=sealed, maxEventsPerBatch=40
    )
    query = stream.load().writeStream.foreachBatch(note)
    query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination(120)
    assert seen == [list(range(1, 41)), list(range(41, 81)), list(range(81, 91))]


def test_an_archive_of_another_log_is_refused(
    spark: SparkSession, sealed: str, tmp_path: Path
) -> None:
    """F8: an archive of another log, and a missing archive, are refused."""
    other = f"sqlite:///{tmp_path}/other.db"
    with seriatim.open(other) as log:
        log.append([NewEvent(event_type="a")] * 100)
    with pytest.raises(LogIdentityChanged, match="belongs to another log"):
        events(spark, other, archive=sealed)
    reader = spark.read.format("seriatim").options(url=other, archive=sealed)
    with pytest.raises(PySparkException, match="belongs to another log"):
        reader.load().count()
    with pytest.raises(PySparkException, match="no archive at"):
        reader.option("archive", str(tmp_path / "nothing")).load().count()
