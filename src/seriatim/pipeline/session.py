"""A Spark session with the settings that Seriatim's jobs were measured with."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from seriatim import config

_EVERYWHERE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
}
_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "3g",  # the executor lives in the driver
}


def session(
    master: str | None = None,
    *,
    name: str = "seriatim",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session on a Spark master: local threads by default, one for each core.

    A session that the process already has is used as it is.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    where = master or config.spark_master()
    config.prepare_for_spark(local=where.startswith("local"))
    known = dict(_EVERYWHERE)
    if where.startswith("local"):
        known |= _LOCAL | {"spark.sql.shuffle.partitions": str(config.cores())}
    builder = SparkSession.builder.master(where).appName(name)
    for key, value in (known | dict(settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
