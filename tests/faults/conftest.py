"""A log that several processes can open, on SQLite and Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import seriatim
from seriatim import Log


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
