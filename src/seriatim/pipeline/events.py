"""The events of a log as a DataFrame: the way our own jobs read."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession


def events(  # noqa: PLR0913 - what is read
    spark: SparkSession,
    url: str,
    *,
    after: int = 0,
    until: int | None = None,
    tenant: str | None = None,
    types: Sequence[str] | None = None,
    stream_types: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    archive: str | None = None,
) -> DataFrame:
    """Return the events after one position and up to another."""
    options = {"url": url, "startingPosition": str(after)}
    if until is not None:
        options["endingPosition"] = str(until)
    if tenant is not None:
        options["tenant"] = tenant
    if types is not None:
        options["types"] = ",".join(types)
    if stream_types is not None:
        options["streamType"] = ",".join(stream_types)
    if columns is not None:
        options["columns"] = ",".join(columns)
    if archive is not None:
        options["archive"] = archive
    return spark.read.format("seriatim").options(**options).load()
