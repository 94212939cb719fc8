"""Fixtures that run the program on a new log of each backend."""

from pathlib import Path

import pytest

import seriatim
from tests.acceptance.cli_program import Program


@pytest.fixture(params=["sqlite", "postgres"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Program:
    """The program on an empty log, named by SERIATIM_URL."""
    if request.param == "postgres":
        return Program(request.getfixturevalue("postgres_url"), tmp_path)
    return _on_sqlite(tmp_path)


@pytest.fixture
def program_without_log(tmp_path: Path) -> Program:
    """The program in an empty folder, without a configured log."""
    return Program(None, tmp_path)


@pytest.fixture
def sqlite(tmp_path: Path) -> Program:
    """The program on an empty SQLite log."""
    return _on_sqlite(tmp_path)


def _on_sqlite(folder: Path) -> Program:
    url = f"sqlite:///{folder}/log.db"
    seriatim.open(url).close()
    return Program(url, folder)
