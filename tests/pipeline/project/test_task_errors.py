"""A failed task is reported in one message, and a live run survives retryable errors (I7)."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from seriatim import (
    BackendFailure,
    EventRecord,
    Log,
    NewEvent,
    Projection,
    SeriatimError,
    frame_projection,
    projection,
)
from seriatim.core.errors import InvalidArgument, ProjectionFailed
from seriatim.pipeline.project.projector import Projector
from seriatim.pipeline.spark_errors import SPARK_ERRORS, to_seriatim_error
from tests.pipeline.project.support import rows_of

Start = Callable[..., Projector]


def killing_key(event: EventRecord) -> str:
    """Kill this worker process once, at an event that names a marker file."""
    marker = event.payload.get("kill")
    if marker and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "all"


@projection("counted", key=killing_key, columns={"events": int})
def counted(state: dict[str, Any] | None, _event: EventRecord) -> dict[str, Any]:
    """Count all events."""
    return {"events": (state["events"] if state else 0) + 1}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_live_run_survives_killed_workers(
    start_on_spark: Start, log: Log, tmp_path: Path
) -> None:
    """I2, I7: killed Python workers delay a live run, and every event is counted once."""
    job = start_on_spark(counted)
    log.append([NewEvent("thing", {"kill": str(tmp_path / "in-catch-up")})])
    done = threading.Event()
    ended: list[BaseException] = []

    def follow() -> None:
        try:
            job.run(live=True, until=done.is_set)
        except BaseException as error:  # noqa: BLE001 - the test tells it
            ended.append(error)

    def wait_for(position: int) -> None:
        deadline = time.monotonic() + 120
        while (status := job.model.progress("counted")) is None or status.position < position:
            assert not ended, ended
            assert time.monotonic() < deadline, status
            time.sleep(0.1)

    runner = threading.Thread(target=follow)
    runner.start()
    try:
        wait_for(1)
        for number in range(2):
            log.append([NewEvent("thing", {"kill": str(tmp_path / f"live-{number}")})])
            wait_for(number + 2)
    finally:
        done.set()
        runner.join(60)
    assert {path.name for path in tmp_path.iterdir()} >= {"in-catch-up", "live-0", "live-1"}
    assert rows_of(job)["all"]["events"] == 3


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_killed_worker_is_one_retryable_error(
    start_on_spark: Start, log: Log, tmp_path: Path
) -> None:
    """L2: in a run that is not live a killed worker is one retryable error of one line."""
    log.append([NewEvent("thing", {"kill": str(tmp_path / "once")})])
    job = start_on_spark(counted)
    with pytest.raises(BackendFailure, match="Python worker process was killed") as caught:
        job.run()
    assert caught.value.retryable
    assert "\n" not in caught.value.message
    assert caught.value.__cause__ is None
    assert job.run().position == 1


def declare_frame_projection(transform: Callable[[DataFrame], Any]) -> Projection:
    """Declare a DataFrame projection with a count per name."""
    columns = {"events": int}
    return frame_projection("framed", key={"name": str}, columns=columns, merge={"events": "sum"})(
        transform
    )


def null_key(given: DataFrame) -> DataFrame:
    """Group by a column that is null in some events."""
    return given.groupBy(f.col("actor_id").alias("name")).agg(f.count("*").alias("events"))


def wrong_type(given: DataFrame) -> DataFrame:
    """Return a text where a number was declared."""
    return given.select(f.col("event_type").alias("name"), f.lit("1").alias("events"))


def raise_on_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Raise at the first batch of events."""
    for _ in batches:
        msg = "we do not\nsell hats"
        raise ValueError(msg)
    yield from ()


def raises_in_a_task(given: DataFrame) -> DataFrame:
    """Call a Python function that raises in a task."""
    return given.mapInArrow(raise_on_batches, "name string, events bigint")


def raises_in_the_driver(_given: DataFrame) -> DataFrame:
    """Raise in the driver."""
    msg = "no such shop"
    raise LookupError(msg)


def unknown_column(given: DataFrame) -> DataFrame:
    """Select a column that does not exist."""
    return given.select(f.col("hat").alias("name"), f.lit(1).alias("events"))


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("transform", "kind", "words"),
    [
        (null_key, ProjectionFailed, "name must have a value"),
        (wrong_type, InvalidArgument, "string in column events, declared as int"),
        (raises_in_a_task, BackendFailure, "ValueError: we do not sell hats"),
        (raises_in_the_driver, ProjectionFailed, "LookupError: no such shop"),
        (unknown_column, BackendFailure, "hat"),
    ],
)
def test_user_error_is_reported_in_one_line(
    start_on_spark: Start, log: Log, transform: Any, kind: type[SeriatimError], words: str
) -> None:
    """I7: an error in a transformation is one line with its reason, in run and rebuild."""
    log.append([NewEvent("thing")])
    job = start_on_spark(declare_frame_projection(transform))
    for act in (job.run, job.rebuild):
        with pytest.raises(kind) as caught:
            act()
        assert words in caught.value.message
        assert "\n" not in caught.value.message
        assert len(caught.value.message) < 600
        assert not caught.value.retryable


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "transform",
    [
        lambda given: given.select(f.col("event_type").alias("name"), f.expr("1 div 0 as events")),
        lambda given: given.select(
            f.col("event_type").alias("name"), f.col("payload").cast("bigint").alias("events")
        ),
        unknown_column,
    ],
    ids=["sql", "frame", "analysis"],
)
def test_java_stack_traces_are_not_logged(start_on_spark: Start, log: Log, transform: Any) -> None:
    """I7: Spark's own log of expression errors is silent in Seriatim's jobs only."""
    log.append([NewEvent("thing")])
    job = start_on_spark(declare_frame_projection(transform))
    with spark_errors() as seen:
        for act in (job.run, job.rebuild):
            with pytest.raises(BackendFailure):
                act()
        assert seen == []
        with pytest.raises(SPARK_ERRORS):
            job.spark.sql("select 1 div 0").collect()
        assert seen  # the user's own queries still log


@contextmanager
def spark_errors() -> Iterator[list[str]]:
    """Collect Spark's log messages about errors in expressions."""
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    loggers = [
        PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")
    ]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield seen
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_transformation_may_use_unpicklable_objects(start_on_spark: Start, log: Log) -> None:
    """I1: a transformation runs in the driver and may use locks and user-defined functions."""
    lock = threading.Lock()
    upper = f.udf(str.upper, "string")

    def counted_by_type(given: DataFrame) -> DataFrame:
        with lock:
            named = given.withColumn("name", upper("event_type"))
        return named.groupBy("name").agg(f.count("*").alias("events"))

    log.append([NewEvent("thing"), NewEvent("thing")])
    declared = declare_frame_projection(counted_by_type)
    declared = structs.replace(declared, upcasters={("thing", 0): dict})
    job = start_on_spark(declared)
    job.run()
    assert job.rebuild().switched
    assert rows_of(job)["THING"]["events"] == 2


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_fold_that_cannot_be_pickled_is_refused(
    start_on_spark: Start, log: Log, capfd: pytest.CaptureFixture[str]
) -> None:
    """I7: a fold that cannot be sent to Spark's tasks is refused at once, without traceback."""
    lock = threading.Lock()

    def locked(_state: Any, _event: EventRecord) -> dict[str, Any]:
        with lock:
            return {"events": 1}

    with pytest.raises(InvalidArgument, match=r"cannot be sent to Spark's tasks: .*lock"):
        start_on_spark(projection("locked", key="event_type", columns={"events": int})(locked))
    assert "Traceback" not in capfd.readouterr().err


AT = "\n\tat x.y(Z.scala:1)"
CALL = "An error occurred while calling o1.x.\n: org.apache.spark.SparkException: Job aborted"
CRASH = "\nCaused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
KILLED = CALL + AT + CRASH + AT + "\nCaused by: java.io.EOFException" + AT
CHAINED = """[X] Traceback (most recent call last):
  File 'a', line 1, in f
    g()
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File 'a', line 2, in f
shop.NoSale: not today
 SQLSTATE: 38000"""
DIVIDED = CALL + AT + "\nCaused by: java.lang.ArithmeticException: / by zero" + AT


@pytest.mark.parametrize(
    ("text", "words", "retryable"),
    [
        (KILLED, "killed or crashed", True),
        (CHAINED + AT, "a Spark task failed with NoSale: not today", False),
        (DIVIDED, "Spark failed: / by zero", False),
        ("", "no reason given", False),
    ],
)
def test_reason_is_extracted_from_spark_errors(text: str, words: str, retryable: bool) -> None:
    """L2: a long Java error is reduced to one line with its reason and whether to retry."""
    caught = to_seriatim_error(Exception(text))
    assert words in caught.message
    assert "\n" not in caught.message
    assert caught.retryable is retryable
