"""A Spark session with the settings that Seriatim's jobs were measured with."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from seriatim import config
from seriatim.pipeline.failures import translated
from seriatim.pipeline.java import java_for_spark
from seriatim.pipeline.source import PUSHDOWN, register

Spark = SparkSession
_LOGGING = Path(__file__).with_name("log4j2.properties")

_EVERYWHERE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    PUSHDOWN: "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # The default ones: who gives extraJavaOptions adds to them, and may name another file.
    "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
}
_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "3g",  # the executor lives in the driver
    # On a cluster the package may come with the job, later than the parent of the workers starts.
    "spark.python.daemon.module": "seriatim.pipeline.daemon",
}


# Settings of a session of ours that are set while Spark runs: results must not depend on a user's.
_RUNTIME = (
    "spark.sql.session.timeZone",
    PUSHDOWN,
    "spark.sql.execution.arrow.pyspark.enabled",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation",
)
_PARTITIONS = "spark.sql.shuffle.partitions"
_lock = threading.Lock()
_made: list[SparkSession] = []  # the session of ours that this process has, if any


def session(
    master: str | None = None,
    *,
    name: str = "seriatim",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session on a Spark master, with our source: local threads by default, one a core.

    Every call of a process returns the same session. Where Spark runs already, on whatever thread,
    it is a session of our own beside the user's, whose settings are left alone; `master` is then
    without effect. Stopping it stops Spark for the whole process.
    """
    with _lock:
        if not _made or not _runs(_made[0]):
            _made[:] = [_begun(master, name, settings or {})]
        spark = _made[0]
    register(spark)
    return spark


def own_session(spark: SparkSession) -> SparkSession:
    """Return a session of a job's own on the same Spark, right whatever the user has set.

    It has the user's number of partitions, and nothing else of their settings.
    """
    own = spark.newSession()
    for key in _RUNTIME:
        own.conf.set(key, _EVERYWHERE[key])
    own.conf.set(_PARTITIONS, str(spark.conf.get(_PARTITIONS)))
    register(own)
    return own


def _runs(spark: SparkSession) -> bool:
    return spark.sparkContext._jsc is not None  # noqa: SLF001 - Python has no other sign


def _begun(master: str | None, name: str, settings: Mapping[str, str]) -> SparkSession:
    running = SparkContext._active_spark_context  # noqa: SLF001 - of any thread
    if running is None or running._jsc is None:  # noqa: SLF001 - as above
        return _started(master, name, settings)
    own = own_session(SparkSession(running))
    for key, value in settings.items():
        if own.conf.isModifiable(key):
            own.conf.set(key, value)
    return own


def _started(master: str | None, name: str, settings: Mapping[str, str]) -> SparkSession:
    where = master or config.spark_master()
    config.prepare_for_spark(local=where.startswith("local"))
    known = dict(_EVERYWHERE)
    if where.startswith("local"):
        known |= _LOCAL | {"spark.sql.shuffle.partitions": str(config.cores())}
    builder = SparkSession.builder.master(where).appName(name)
    for key, value in {**known, **settings}.items():
        builder = builder.config(key, value)
    spark: SparkSession | None = None
    try:
        with java_for_spark(), _postponed_signals():
            spark = builder.getOrCreate()
    except BaseException:
        if spark is not None:
            spark.stop()
        raise
    return spark


@contextmanager
def _postponed_signals() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM after the block.

    PySpark cannot be interrupted while it starts Java: the JVM would print a stack, because the
    folder it reports to is gone, and would never end. A second signal is handled at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    pending: list[int] = []

    def postpone(number: int, frame: FrameType | None) -> None:
        if pending:
            _handle(handlers, number, frame)
        pending.append(number)

    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, postpone)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is postpone:  # else Spark has its own by now
                signal.signal(number, handler)
    if pending:
        _handle(handlers, pending[0], None)


def _handle(handlers: Mapping[signal.Signals, Any], number: int, frame: FrameType | None) -> None:
    handlers[signal.Signals(number)](number, frame)


@contextmanager
def using(spark: Spark) -> Iterator[Spark]:
    """Stop a session after use; what Spark itself raises is told in our words."""
    try:
        with translated():
            yield spark
    finally:
        spark.stop()
