"""A Spark session with the settings that Seriatim's jobs were measured with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from seriatim import config
from seriatim.pipeline.failures import SPARK_ERRORS, failure_of
from seriatim.pipeline.java import java_for_spark
from seriatim.pipeline.source import register

Spark = SparkSession
_LOGGING = Path(__file__).with_name("log4j2.properties")

_EVERYWHERE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",  # in every thread, unlike register()
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


def session(
    master: str | None = None,
    *,
    name: str = "seriatim",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session on a Spark master, with our source: local threads by default, one a core.

    A session that the process already has is used as it is.
    """
    spark = SparkSession.getActiveSession() or _started(master, name, settings or {})
    register(spark)
    return spark


def _started(master: str | None, name: str, settings: Mapping[str, str]) -> SparkSession:
    where = master or config.spark_master()
    config.prepare_for_spark(local=where.startswith("local"))
    known = dict(_EVERYWHERE)
    if where.startswith("local"):
        known |= _LOCAL | {"spark.sql.shuffle.partitions": str(config.cores())}
    builder = SparkSession.builder.master(where).appName(name)
    for key, value in {**known, **settings}.items():
        builder = builder.config(key, value)
    with java_for_spark():
        return builder.getOrCreate()


@contextmanager
def using(spark: Spark) -> Iterator[Spark]:
    """Stop a session after use; what Spark itself raises is told in our words."""
    try:
        yield spark
    except SPARK_ERRORS as error:
        raise failure_of(error) from error
    finally:
        spark.stop()
