"""Fixtures for logs on SQLite and Postgres."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import seriatim
from seriatim import NewEvent
from seriatim.spark import register


@pytest.fixture(params=["sqlite", "postgres"])
def log_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty log."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    url = f"sqlite:///{tmp_path}/log.db"
    seriatim.open(url).close()
    return url


@pytest.fixture
def fill(log_url: str) -> Callable[..., None]:
    """Return a function that appends events to the log and closes it.

    Those with idempotency keys come last, in an append of their own.
    """

    def append(*events: NewEvent, tenant_id: str = "default") -> None:
        with seriatim.open(log_url, tenant_id=tenant_id) as log:
            for keyed in (False, True):
                if group := [
                    event for event in events if (event.idempotency_key is not None) is keyed
                ]:
                    log.append(group)

    return append


@pytest.fixture
def read(spark: SparkSession, log_url: str) -> Callable[..., DataFrame]:
    """Return a function that reads the log as a DataFrame with options."""
    register(spark)

    def load(**options: object) -> DataFrame:
        reader = spark.read.format("seriatim").option("url", log_url)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    return load
