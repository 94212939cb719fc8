"""The extra that provides a missing module."""

import pytest

from seriatim.core.extras import explain_missing_module, find_extra


@pytest.mark.parametrize(
    ("module", "extra"),
    [("pyspark.sql", "spark"), ("confluent_kafka", "kafka"), ("psycopg", "postgres")],
)
def test_a_missing_module_names_its_extra(module: str, extra: str) -> None:
    """L3: the message has the command that mends it."""
    error = ModuleNotFoundError(f"No module named {module!r}", name=module)

    assert find_extra(error) == extra
    assert f"pip install 'seriatim[{extra}]'" in str(explain_missing_module(error))
    assert explain_missing_module(error).name == module


def test_unrelated_missing_module_is_reported_as_is() -> None:
    """L3: a module that no extra brings is reported as it is."""
    error = ModuleNotFoundError("No module named 'mine'", name="mine")

    assert find_extra(error) is None
    assert explain_missing_module(error) is error
    assert find_extra(ImportError("x")) is None
