"""Fixtures for read models on SQLite and Postgres, and for logs on each backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import seriatim
from seriatim import Log
from seriatim.factory import open_read_model
from seriatim.store.readmodel.model import ReadModel
from tests.fixtures.service import run_service


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL without a read model."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/read.db"
    url: str = request.getfixturevalue("empty_postgres_url")
    return f"{url}?schema=read" if "?" not in url else f"{url}&schema=read"


@pytest.fixture
def model(place: str) -> Iterator[ReadModel]:
    """An empty read model."""
    model = open_read_model(place)
    yield model
    model.close()


@pytest.fixture(params=["memory", "sqlite", "postgres", "http"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    """A log on each backend, and one over HTTP."""
    if request.param == "http":
        with (
            run_service(f"sqlite:///{tmp_path}/served.db") as service,
            seriatim.open(service.url, token=service.token()) as remote,
        ):
            yield remote
        return
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/log.db"
    if request.param == "postgres":
        url = str(request.getfixturevalue("postgres_url"))
    with seriatim.open(url) as opened:
        yield opened
