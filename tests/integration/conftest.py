"""Fixtures for read models on SQLite and Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seriatim.factory import open_read_model
from seriatim.store.readmodel.model import ReadModel


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
