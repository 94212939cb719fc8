"""A fresh, empty log on every backend: the contract suite runs once on each."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import seriatim
from seriatim import Log

BACKENDS: dict[str, Callable[[pytest.FixtureRequest], str]] = {
    "memory": lambda _: "memory:",
    "sqlite": lambda request: f"sqlite:///{_folder(request) / 'log.db'}",
    "postgres": lambda request: str(request.getfixturevalue("application_url")),
}


def _folder(request: pytest.FixtureRequest) -> Path:
    folder = request.getfixturevalue("tmp_path")
    assert isinstance(folder, Path)
    return folder


@pytest.fixture(params=BACKENDS)
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    """An empty log on one backend."""
    with seriatim.open(BACKENDS[request.param](request)) as opened:
        yield opened
