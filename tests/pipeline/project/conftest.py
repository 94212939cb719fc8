"""Fixtures for a log on each database and projectors on the shared session."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import seriatim
from seriatim import Log, Projection
from seriatim.pipeline.project.projector import Projector
from seriatim.spark import register

Start = Callable[..., Projector]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty log."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/log.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    """The log at the URL."""
    with seriatim.open(url) as opened:
        yield opened


@pytest.fixture
def start(spark: SparkSession, url: str, log: Log) -> Iterator[Start]:
    """Return a function that creates projectors of the log."""
    register(spark)
    with ExitStack() as stack:

        def make(projection: Projection, **options: Any) -> Projector:
            return stack.enter_context(Projector(spark, projection, url, **options))

        yield make


@pytest.fixture(params=["driver", "shares", "shuffle"])
def fold_location(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The place where batches are folded: in the driver, or in tasks."""
    if request.param != "driver":
        monkeypatch.setattr("seriatim.pipeline.project.batch.DRIVER_FOLD_MAX_EVENTS", 0)
    if request.param == "shuffle":
        monkeypatch.setattr("seriatim.pipeline.project.key_partitions.MAX_PARTITIONS", 0)
    return str(request.param)
