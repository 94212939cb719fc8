"""Name the themed fixture plugins; each theme lives in its own file under tests/fixtures."""

import pytest

pytest_plugins = [
    "tests.fixtures.kafka_broker",
    "tests.fixtures.pgbouncer",
    "tests.fixtures.postgres",
    "tests.fixtures.proxy",
    "tests.fixtures.quick_java",
    "tests.fixtures.s3_server",
    "tests.fixtures.spark",
    "tests.fixtures.spark_cluster",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long, so that two workers end at about the same time."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
