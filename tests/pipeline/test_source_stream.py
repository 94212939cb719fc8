"""Streams of the log: bounded batches, restarts, and checkpoints with the log identity."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import datasource as limits
from pyspark.sql.streaming.query import StreamingQuery

import seriatim
from seriatim import NewEvent
from seriatim.core.errors import InvalidArgument, LogIdentityChanged
from seriatim.pipeline.scan.options import parse_source_options
from seriatim.pipeline.source.stream_reader import StreamReader
from seriatim.spark import register
from tests.pipeline.event_samples import make_varied_events, read_stored_events

Fill = Callable[..., None]


class Runs:
    """Run queries over one log with one checkpoint, and record the positions of each batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.checkpoint = folder / "checkpoint"
        self.batches: list[list[int]] = []

    @property
    def seen(self) -> list[int]:
        """All positions of all batches."""
        return [position for batch in self.batches for position in batch]

    def start(self, url: str, *, live: bool = False, **options: object) -> StreamingQuery:
        """Start a query."""
        make_reader = self._spark.readStream.format("seriatim").option("url", url)
        for name, value in options.items():
            make_reader = make_reader.option(name, str(value))
        writer = make_reader.load().writeStream.foreachBatch(self._note)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if live:
            return writer.trigger(processingTime="0 seconds").start()
        return writer.trigger(availableNow=True).start()

    def run(self, url: str, **options: Any) -> list[list[int]]:
        """Run a query over the available events, and return its batches."""
        self.batches = []
        query = self.start(url, **options)
        query.awaitTermination(120)
        return self.batches

    def _note(self, frame: DataFrame, _batch: int) -> None:
        found = sorted(row.position for row in frame.select("position").collect())
        if found:  # Spark's first batch may hold nothing
            self.batches.append(found)


@pytest.fixture
def queries(spark: SparkSession, tmp_path: Path) -> Iterator[Runs]:
    """Queries, all of which are stopped after the test."""
    register(spark)
    yield Runs(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


def test_batches_are_bounded_and_continue_after_a_restart(
    queries: Runs, fill: Fill, log_url: str
) -> None:
    """J1: each event is read once and in order, in batches of the given size, over restarts."""
    assert queries.run(log_url, maxEventsPerBatch=10) == []
    fill(*make_varied_events(25))
    assert queries.run(log_url, maxEventsPerBatch=10) == [
        list(range(1, 11)),
        list(range(11, 21)),
        list(range(21, 26)),
    ]
    assert queries.run(log_url, maxEventsPerBatch=10) == []
    fill(NewEvent(event_type="one"))
    assert queries.run(log_url) == [[26]]


def test_a_live_query_follows_the_log(queries: Runs, log_url: str) -> None:
    """J1: events appended while a query runs are in its next batches."""
    with seriatim.open(log_url) as log:
        query = queries.start(log_url, live=True, types="a")
        try:
            for _ in range(3):
                log.append([NewEvent(event_type="a"), NewEvent(event_type="b")])
                last = log.head()
                _wait(queries, last - 1)
        finally:
            query.stop()
        assert query.exception() is None
    assert queries.seen == [1, 3, 5]


def _wait(queries: Runs, position: int) -> None:
    deadline = time.monotonic() + 120
    while position not in queries.seen:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_checkpoint_of_another_log_stops_the_query(
    queries: Runs, fill: Fill, log_url: str, tmp_path: Path
) -> None:
    """F8: a query with a checkpoint of another log fails."""
    fill(*make_varied_events(3))
    assert queries.run(log_url) == [[1, 2, 3]]
    other = f"sqlite:///{tmp_path}/other.db"
    with seriatim.open(other) as log:
        log.append([NewEvent(event_type="x")] * 5)
    with pytest.raises(StreamingQueryException, match="belongs to another log"):
        queries.run(other)


# What follows asks the reader itself, as Spark does; starting a query for each would take minutes.


def make_reader(url: str, **options: str) -> StreamReader:
    """A stream reader, made as Spark makes it."""
    return StreamReader(parse_source_options({"url": url, **options}))


def test_offsets_stop_at_the_limit_and_at_the_target(log_url: str, fill: Fill) -> None:
    """J1: offsets stop at the batch limit, and with availableNow at the head at its start."""
    stream = make_reader(log_url, maxEventsPerBatch="4")
    start = stream.initialOffset()
    assert start["position"] == 0
    assert stream.latestOffset(start, limits.ReadAllAvailable()) is start
    fill(*make_varied_events(6))
    stream.prepareForTriggerAvailableNow()
    fill(NewEvent(event_type="later"))
    limit = stream.getDefaultReadLimit()
    assert limit == limits.ReadMaxRows(4)
    first = stream.latestOffset(start, limit)
    second = stream.latestOffset(first, limit)
    assert (first["position"], second["position"]) == (4, 6)
    assert stream.latestOffset(second, limit) == second
    assert stream.latestOffset(start, limits.ReadAllAvailable())["position"] == 6
    assert stream.reportLatestOffset()["position"] == 7
    assert [(p.after, p.until) for p in stream.partitions(first, second)] == [(4, 6)]  # type: ignore[attr-defined]
    stream.stop()


def test_the_starting_position_of_a_query(log_url: str, fill: Fill) -> None:
    """J1: a query starts at earliest, latest or a position in the log; others are refused."""
    fill(*make_varied_events(5))
    for starting, position in (("earliest", 0), ("latest", 5), ("3", 3), ("5", 5)):
        stream = make_reader(log_url, startingPosition=starting)
        assert stream.initialOffset()["position"] == position
        stream.stop()
    stream = make_reader(log_url, startingPosition="6")
    with pytest.raises(InvalidArgument, match="after the end of the log"):
        stream.initialOffset()
    stream.stop()
    with pytest.raises(InvalidArgument, match="has no end"):
        make_reader(log_url, endingPosition="6")


def test_another_history_stops_a_query(log_url: str, fill: Fill) -> None:
    """F8: a changed log, epoch, head or event at the offset stops a query by name."""
    fill(*make_varied_events(5))
    stream = make_reader(log_url)
    now = stream.reportLatestOffset()
    for change, words in (
        ({"log_id": "0" * 36}, "another log"),
        ({"epoch": 9}, "is of epoch 9"),
        ({"position": 6}, "the log ends at 5"),
        ({"tip": "other"}, "another event at position 5"),
    ):
        bad = now | change
        with pytest.raises(LogIdentityChanged, match=words):
            stream.latestOffset(bad, limits.ReadAllAvailable())
        with pytest.raises(LogIdentityChanged, match=words):
            stream.partitions(stream.initialOffset(), bad)
    with pytest.raises(LogIdentityChanged, match="another data source"):
        stream.latestOffset({"index": 3}, limits.ReadAllAvailable())
    stream.stop()


def test_an_epoch_raised_during_a_query_stops_it(postgres_url: str) -> None:
    """F8: an epoch raised while a query runs stops it."""
    with seriatim.open(postgres_url) as log:
        log.append([NewEvent(event_type="a")])
    stream = make_reader(postgres_url)
    start = stream.initialOffset()
    stream.latestOffset(start, limits.ReadAllAvailable())
    with psycopg.connect(postgres_url) as connection:
        connection.execute("select seriatim.raise_epoch(true)")
    with pytest.raises(LogIdentityChanged, match="epoch"):
        stream.latestOffset(start, limits.ReadAllAvailable())
    stream.stop()


def test_a_lost_connection_is_replaced(postgres_url: str) -> None:
    """F8: a query goes on with a new connection after the server closed the old one."""
    stream = make_reader(postgres_url)
    start = stream.initialOffset()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
    assert stream.latestOffset(start, limits.ReadAllAvailable()) == start
    stream.stop()


def test_a_replaced_file_stops_a_query(tmp_path: Path) -> None:
    """F8: another log at the same path stops a query."""
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")]
    for url in urls:
        with seriatim.open(url) as log:
            log.append([NewEvent(event_type="a")])
        assert len(read_stored_events(url)) == 1
    stream = make_reader(urls[0])
    start = stream.reportLatestOffset()
    (tmp_path / "two.db").replace(tmp_path / "one.db")
    with pytest.raises(LogIdentityChanged, match="another log"):
        stream.latestOffset(start, limits.ReadAllAvailable())
