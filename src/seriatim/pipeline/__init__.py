"""The log on Spark: reading, appending, projecting, archiving and auditing it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from seriatim.pipeline.source import SeriatimSource


def register(spark: SparkSession) -> None:
    """Make the format `seriatim` known to a session, with filters pushed down to the log."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(SeriatimSource)


__all__ = ["SeriatimSource", "register"]
