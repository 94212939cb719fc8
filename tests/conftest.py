"""Load the fixture plugins, one for each file in tests/fixtures."""

import pytest

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
