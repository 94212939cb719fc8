"""Registries on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seriatim.config.delivery import Registering
from seriatim.delivery.registry import Registry
from seriatim.opening import open_registry


@pytest.fixture(params=["sqlite", "postgres"])
def registry_at(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a place where no registry is yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/delivery.db"
    return str(request.getfixturevalue("empty_postgres_url"))


@pytest.fixture
def registry(registry_at: str) -> Iterator[Registry]:
    """A registry with nothing in it."""
    made = open_registry(registry_at)
    yield made
    made.close()


@pytest.fixture
def hasty(registry_at: str) -> Iterator[Registry]:
    """The same registry, opened by somebody whose leases end at once."""
    made = open_registry(registry_at, Registering(lease_s=0.02, heartbeat_s=0.01))
    yield made
    made.close()
