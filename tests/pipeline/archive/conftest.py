"""Fixtures for logs on each backend and archives on each kind of storage."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.postgres_server import PostgresServer


@pytest.fixture(params=["sqlite", "postgres"])
def log_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty log."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/log.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture(params=["folder", "s3"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The location of an archive."""
    if request.param == "folder":
        return f"{tmp_path}/archive"
    found: str = request.getfixturevalue("s3_url")
    return found


@pytest.fixture(params=["sqlite-folder", "postgres-s3"])
def log_and_place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """An empty log and an archive location; each backend and storage once, for slow tests."""
    if request.param == "sqlite-folder":
        return f"sqlite:///{tmp_path}/log.db", f"{tmp_path}/archive"
    return request.getfixturevalue("postgres_url"), request.getfixturevalue("s3_url")


@pytest.fixture
def another_url(
    log_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[], str]]:
    """Return a function that creates URLs of further logs on the same backend."""
    names: list[str] = []

    def make() -> str:
        name = f"another_{len(names)}"
        names.append(name)
        if log_url.startswith("sqlite"):
            return f"sqlite:///{tmp_path}/{name}.db"
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return server.create_database(name)

    yield make
    if not log_url.startswith("sqlite"):
        server: PostgresServer = request.getfixturevalue("postgres_server")
        for name in names:
            server.drop_database(name)
