"""Spark sessions with the settings that Seriatim's jobs need and were measured with."""

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
from seriatim.pipeline.java_runtime import use_java_for_spark
from seriatim.pipeline.source.data_source import PUSHDOWN_SETTING, register
from seriatim.pipeline.spark_errors import translate_spark_errors

Spark = SparkSession
_LOGGING_CONFIG = Path(__file__).with_name("log4j2.properties")

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    PUSHDOWN_SETTING: "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # A user's extraJavaOptions are added to these default options and may name another file.
    "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING_CONFIG.as_uri()}",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
}
_LOCAL_SETTINGS = {
    # Loopback: other machines must not reach the ports of a local Spark.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "3g",  # in local mode, tasks run in the driver's JVM
    # Not on a cluster: there, the package may be shipped with the job, after the daemon started.
    "spark.python.daemon.module": "seriatim.pipeline.daemon",
}

# Settings that a job sets on its own session, so that results do not depend on the user's.
_JOB_SETTINGS = (
    "spark.sql.session.timeZone",
    PUSHDOWN_SETTING,
    "spark.sql.execution.arrow.pyspark.enabled",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation",
)
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_lock = threading.Lock()  # two threads must not start Spark at the same time
_current: list[SparkSession] = []  # this process's session, if it has one


def session(
    master: str | None = None,
    *,
    name: str = "seriatim",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return this process's Spark session with Seriatim's settings and format.

    Every call returns the same session. If Spark is already running in this process, on any
    thread, the result is a new session on it: the user's session keeps its settings, and `master`
    has no effect. Stopping the session stops Spark for the whole process.

    Args:
        master: The Spark master; by default that of the configuration, or local threads, one per
            core.
        name: The name of the Spark application.
        settings: Further Spark settings, which override Seriatim's.

    Raises:
        BackendFailure: There is no suitable Java.

    Example:
        spark = session()
        spark.read.format("seriatim").option("url", "sqlite:///app.db").load().show()
    """
    with _lock:
        if not _current or not _is_running(_current[0].sparkContext):
            _current[:] = [_create_session(master, name, settings or {})]
        spark = _current[0]
    register(spark)
    return spark


def create_job_session(spark: SparkSession) -> SparkSession:
    """Return a new session for a job, on the same Spark, with the settings that jobs need.

    Of the given session's settings it keeps only the number of shuffle partitions.
    """
    job_session = spark.newSession()
    for key in _JOB_SETTINGS:
        job_session.conf.set(key, _SETTINGS[key])
    job_session.conf.set(_SHUFFLE_PARTITIONS, str(spark.conf.get(_SHUFFLE_PARTITIONS)))
    register(job_session)
    return job_session


def _is_running(context: SparkContext) -> bool:
    return context._jsc is not None  # noqa: SLF001 - there is no public method


def _create_session(master: str | None, name: str, settings: Mapping[str, str]) -> SparkSession:
    running = SparkContext._active_spark_context  # noqa: SLF001 - of any thread, not only this one
    if running is None or not _is_running(running):
        return _start_spark(master, name, settings)
    spark = create_job_session(SparkSession(running))
    for key, value in settings.items():
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)
    return spark


def _start_spark(master: str | None, name: str, settings: Mapping[str, str]) -> SparkSession:
    master = master or config.spark_master()
    local = master.startswith("local")
    config.set_spark_environment(local=local)
    defaults = dict(_SETTINGS)
    if local:
        defaults |= _LOCAL_SETTINGS | {_SHUFFLE_PARTITIONS: str(config.available_cores())}
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**defaults, **settings}.items():
        builder = builder.config(key, value)
    spark: SparkSession | None = None
    try:
        with use_java_for_spark(), _postpone_signals():
            spark = builder.getOrCreate()
    except BaseException:
        # A postponed Ctrl-C is raised after Spark has started: do not leave its JVM running.
        if spark is not None:
            spark.stop()
        raise
    return spark


@contextmanager
def _postpone_signals() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM after the block; a second signal is handled immediately.

    PySpark cannot be interrupted while it starts Java: the temporary folder through which the JVM
    reports its port would be removed, and the JVM would print a stack trace and never exit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    pending: list[int] = []

    def postpone(number: int, frame: FrameType | None) -> None:
        if pending:
            _call_handler(handlers, number, frame)
        pending.append(number)

    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, postpone)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is postpone:  # otherwise Spark has installed its own
                signal.signal(number, handler)
    if pending:
        _call_handler(handlers, pending[0], None)


def _call_handler(
    handlers: Mapping[signal.Signals, Any], number: int, frame: FrameType | None
) -> None:
    handlers[signal.Signals(number)](number, frame)


@contextmanager
def stop_after_use(spark: Spark) -> Iterator[Spark]:
    """Yield a session, translate Spark's errors, and stop Spark after the block.

    Raises:
        SeriatimError: A Spark job failed in the block.
    """
    try:
        with translate_spark_errors():
            yield spark
    finally:
        spark.stop()
