"""Fixtures: services on SQLite and Postgres, shared by the tests of a file."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.postgres_server import PostgresServer
from tests.fixtures.service import RunningService, run_service
from tests.service.scripted_server import ScriptedHandler, run_scripted_server
from tests.service.tenant_data import fill

BACKENDS = ("sqlite", "postgres")
_numbers = itertools.count(1)
Serve = Callable[..., RunningService]


@pytest.fixture(scope="module", params=BACKENDS)
def shared_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a log that the tests of a file share."""
    if request.param == "sqlite":
        yield sqlite_in(tmp_path_factory.mktemp("service"))
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = f"service_{next(_numbers)}"
    yield server.create_database(name, request.getfixturevalue("postgres_template"))
    server.drop_database(name)


def sqlite_in(folder: Path) -> str:
    """Return the URL of a log in a folder."""
    return f"sqlite:///{folder / 'log.db'}"


@pytest.fixture(scope="module")
def service(shared_url: str) -> Iterator[RunningService]:
    """A service on each backend that the tests of a file share."""
    with run_service(shared_url) as service:
        yield service


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service on SQLite that the tests of a file share."""
    with run_service(sqlite_in(tmp_path_factory.mktemp("quick"))) as one:
        yield one


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serve]:
    """Return a function that starts separate services with given settings."""
    with ExitStack() as stack:

        def start(url: str | None = None, **settings: Any) -> RunningService:
            return stack.enter_context(run_service(url or sqlite_in(tmp_path), **settings))

        yield start


@pytest.fixture
def scripted() -> Iterator[tuple[str, type[ScriptedHandler]]]:
    """A server with scripted responses, and its URL."""
    with run_scripted_server() as one:
        yield one


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost and its key."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", folder / "key.pem", "-out", folder / "cert.pem"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture(scope="module")
def filled(shared_url: str) -> Iterator[RunningService]:
    """A separate service on each backend, with data of two tenants."""
    with run_service(shared_url) as one:
        fill(one, shared_url)
        yield one
