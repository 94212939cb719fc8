"""Fixtures for a log on each database, and for projections on each engine."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim import Log, Projection
from seriatim.pipeline.project.projector import Projector
from seriatim.spark import register
from tests.pipeline.project.local_job import LocalJob

Start = Callable[..., Projector]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test of projections on both engines, and on Spark where it asks for each place."""
    on_both = "engine" in metafunc.fixturenames
    if "fold_location" in metafunc.fixturenames:
        places = ["driver", "shares", "shuffle", *(["local"] if on_both else [])]
        metafunc.parametrize("fold_location", places, indirect=True)
    elif on_both:
        metafunc.parametrize("engine", ["local", "spark"], indirect=True)


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
def engine(request: pytest.FixtureRequest) -> str:
    """The engine that runs projections."""
    if hasattr(request, "param"):
        return str(request.param)
    return "local" if request.getfixturevalue("fold_location") == "local" else "spark"


@pytest.fixture
def start(request: pytest.FixtureRequest, engine: str, url: str, log: Log) -> Iterator[Start]:
    """Return a function that opens a projection of the log on the engine."""
    if engine == "spark":
        yield request.getfixturevalue("start_on_spark")
        return
    with ExitStack() as stack:

        def make(projection: Projection, at: str = url, **options: Any) -> Any:
            return stack.enter_context(LocalJob(projection, at, **options))

        yield make


@pytest.fixture
def start_on_spark(request: pytest.FixtureRequest, url: str, log: Log) -> Iterator[Start]:
    """Return a function that creates projectors of the log on the shared session."""
    spark = request.getfixturevalue("spark")
    register(spark)
    with ExitStack() as stack:

        def make(projection: Projection, at: str = url, **options: Any) -> Projector:
            return stack.enter_context(Projector(spark, projection, at, **options))

        yield make


@pytest.fixture
def fold_location(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The place where batches are folded: in the driver, in tasks, or without Spark."""
    if request.param in ("shares", "shuffle"):
        monkeypatch.setattr("seriatim.pipeline.project.job.fits_driver", lambda _: False)
    if request.param == "shuffle":
        monkeypatch.setattr("seriatim.pipeline.project.key_partitions.MAX_PARTITIONS", 0)
    return str(request.param)
