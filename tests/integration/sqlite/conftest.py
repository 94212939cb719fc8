"""Fixtures for a SQLite store in a new file for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from seriatim.store.sqlite.store import SqliteStore
from tests.integration.sqlite.store_appender import StoreAppender


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The path of a log that does not exist yet."""
    return str(tmp_path / "log.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    """An empty log."""
    opened = SqliteStore(path)
    yield opened
    opened.close()


@pytest.fixture
def appender() -> StoreAppender:
    """A helper that appends to a store directly."""
    return StoreAppender()
