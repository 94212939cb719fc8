"""Load the fixture plugins, one for each file in tests/fixtures."""

import pytest
from hypothesis import HealthCheck, settings

# No test fails by the clock: on a busy machine any example may be slow.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

pytest_plugins = [
    "tests.fixtures.kafka_broker",
    "tests.fixtures.pgbouncer",
    "tests.fixtures.postgres",
    "tests.fixtures.proxy",
    "tests.fixtures.jvm_class_cache",
    "tests.fixtures.s3_server",
    "tests.fixtures.spark",
    "tests.fixtures.spark_cluster",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first, so that two workers finish at about the same time."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
