"""Fixtures: the program on a fresh log of each backend."""

from pathlib import Path

import pytest

from tests.acceptance.program import Program


@pytest.fixture(params=["sqlite", "postgres"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Program:
    """The program on an empty log, named by SERIATIM_URL."""
    if request.param == "postgres":
        return Program(request.getfixturevalue("postgres_url"), tmp_path)
    made = Program(f"sqlite:///{tmp_path}/log.db", tmp_path)
    assert made("init").code == 0
    return made


@pytest.fixture
def lone(tmp_path: Path) -> Program:
    """The program in an empty folder, with no log named."""
    return Program(None, tmp_path)


@pytest.fixture
def sqlite(tmp_path: Path) -> Program:
    """The program on an empty SQLite log."""
    made = Program(f"sqlite:///{tmp_path}/log.db", tmp_path)
    assert made("init").code == 0
    return made
