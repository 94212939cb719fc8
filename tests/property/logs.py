"""New logs for property tests: the reference in memory and the subjects on disk."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

import seriatim
from seriatim import Log
from tests.fixtures.postgres_server import PostgresServer

_numbers = itertools.count(1)

Opener = Callable[[], tuple[Log, Callable[[], None]]]
"""Opens a new log; returns it with a function that removes it."""

SUBJECTS = ("sqlite", "postgres")

EXAMPLES = settings().max_examples
"""The examples of the loaded profile; tests use a multiple or a part of them."""


def opener(request: pytest.FixtureRequest, backend: str) -> Opener:
    """Return a function that opens a new log on a backend for each example."""
    if backend == "memory":
        return open_memory
    if backend == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        return lambda: _sqlite(folder)
    server: PostgresServer = request.getfixturevalue("postgres_server")
    template: str = request.getfixturevalue("postgres_template")
    return lambda: _postgres(server, template)


def open_memory() -> tuple[Log, Callable[[], None]]:
    """Open the reference log in memory."""
    log = seriatim.open("memory:")
    return log, log.close


def _sqlite(folder: Path) -> tuple[Log, Callable[[], None]]:
    path = folder / f"{next(_numbers)}.db"
    log = seriatim.open(f"sqlite:///{path}")

    def remove() -> None:
        log.close()
        for left in folder.glob(f"{path.name}*"):
            left.unlink()

    return log, remove


def _postgres(server: PostgresServer, template: str) -> tuple[Log, Callable[[], None]]:
    name = f"property_{next(_numbers)}"
    log = seriatim.open(server.create_database(name, template))

    def remove() -> None:
        log.close()
        server.drop_database(name)

    return log, remove
