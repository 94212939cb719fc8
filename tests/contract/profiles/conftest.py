"""A fresh log on each backend."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import seriatim


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[seriatim.Log]:
    """A log that nothing was appended to."""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    else:
        url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/log.db"
    with seriatim.open(url) as opened:
        yield opened
