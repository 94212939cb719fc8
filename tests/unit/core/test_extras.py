"""The extra that provides a missing module."""

import pytest

from seriatim.core.extras import explained, extra_of


@pytest.mark.parametrize(
    ("module", "extra"),
    [("pyspark.sql", "spark"), ("confluent_kafka", "kafka"), ("psycopg", "postgres")],
)
def test_a_missing_module_names_its_extra(module: str, extra: str) -> None:
    """L3: the message has the command that mends it."""
    error = ModuleNotFoundError(f"No module named {module!r}", name=module)

    assert extra_of(error) == extra
    assert f"pip install 'seriatim[{extra}]'" in str(explained(error))
    assert explained(error).name == module


def test_other_modules_are_the_users_own() -> None:
    """L3: a module that no extra brings is reported as it is."""
    error = ModuleNotFoundError("No module named 'mine'", name="mine")

    assert extra_of(error) is None
    assert explained(error) is error
    assert extra_of(ImportError("x")) is None
