"""Fixtures: consoles on SQLite and Postgres with data of two tenants."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.console_service import ConsoleService, run_console
from tests.fixtures.postgres_server import PostgresServer
from tests.service.conftest import sqlite_in
from tests.service.tenant_data import fill

_numbers = itertools.count(1)


@pytest.fixture
def console(tmp_path: Path) -> Iterator[ConsoleService]:
    """A console on SQLite with data of two tenants."""
    url = sqlite_in(tmp_path)
    with run_console(url) as service:
        fill(service, url)
        yield service


@pytest.fixture(params=["sqlite", "postgres"])
def console_anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConsoleService]:
    """A console on each backend, with data of two tenants."""
    if request.param == "sqlite":
        url = sqlite_in(tmp_path)
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        template = request.getfixturevalue("postgres_template")
        url = server.create_database(f"console_{next(_numbers)}", template)
    with run_console(url) as service:
        fill(service, url)
        yield service
