"""Name the themed fixture plugins; each theme lives in its own file under tests/fixtures."""

pytest_plugins = [
    "tests.fixtures.postgres",
    "tests.fixtures.proxy",
    "tests.fixtures.s3_server",
    "tests.fixtures.spark",
    "tests.fixtures.spark_cluster",
]
