"""Fixtures for registries on SQLite and Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seriatim.config.delivery import RegistrySettings
from seriatim.delivery.registry import Registry
from seriatim.factory import open_registry


@pytest.fixture(params=["sqlite", "postgres"])
def registry_at(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL without a registry."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/delivery.db"
    return str(request.getfixturevalue("empty_postgres_url"))


@pytest.fixture
def registry(registry_at: str) -> Iterator[Registry]:
    """An empty registry."""
    registry = open_registry(registry_at)
    yield registry
    registry.close()


@pytest.fixture
def expiring_registry(registry_at: str) -> Iterator[Registry]:
    """A second handle of the registry, whose leases expire immediately."""
    made = open_registry(registry_at, RegistrySettings(lease_s=0.02, heartbeat_s=0.01))
    yield made
    made.close()
