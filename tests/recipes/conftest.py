"""The logs of the recipes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import seriatim
from seriatim import Log


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty log."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    """The log of the application, for checks."""
    with seriatim.open(url) as opened:
        yield opened
