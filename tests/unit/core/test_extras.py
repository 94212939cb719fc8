"""The extra that installs a missing module."""

import sys

import pytest

from seriatim.core.extras import explain_missing_module, find_extra, import_name


@pytest.mark.parametrize(
    ("module", "extra"),
    [("pyspark.sql", "spark"), ("confluent_kafka", "kafka"), ("psycopg", "postgres")],
)
def test_a_missing_module_names_its_extra(module: str, extra: str) -> None:
    """L3: the error of a missing module has the command that installs its extra."""
    error = ModuleNotFoundError(f"No module named {module!r}", name=module)

    assert find_extra(error) == extra
    assert f"pip install 'seriatim[{extra}]'" in str(explain_missing_module(error))
    assert explain_missing_module(error).name == module


def test_unrelated_missing_module_is_reported_as_is() -> None:
    """L3: the error of a module that belongs to no extra is unchanged."""
    error = ModuleNotFoundError("No module named 'mine'", name="mine")

    assert find_extra(error) is None
    assert explain_missing_module(error) is error
    assert find_extra(ImportError("x")) is None


def test_lazy_imports_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """L3: a lazy import whose library is missing names the command that installs it."""
    monkeypatch.setitem(sys.modules, "pyspark", None)

    assert import_name("seriatim.core.extras", "find_extra") is find_extra
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'seriatim\[spark\]'"):
        import_name("pyspark", "SparkContext")
