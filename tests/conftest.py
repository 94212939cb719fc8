"""Load the fixture plugins, one for each file in tests/fixtures."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

BYTECODE = Path(__file__).parents[1] / "build" / "bytecode"

# A run starts a thousand Python processes. Where PYTHONDONTWRITEBYTECODE keeps the folders of the
# sources clean, each of them would compile every module that it imports, half of its start.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(BYTECODE)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# No test fails by the clock: on a busy machine any example may be slow.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

pytest_plugins = [
    "tests.fixtures.jvm_class_cache",  # first, because others import it
    "tests.fixtures.kafka_broker",
    "tests.fixtures.pgbouncer",
    "tests.fixtures.postgres",
    "tests.fixtures.proxy",
    "tests.fixtures.s3_server",
    "tests.fixtures.spark",
    "tests.fixtures.spark_cluster",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first, so that two workers finish at about the same time."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
