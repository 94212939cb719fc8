"""The public names: sorted and complete; every error code is unique."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import seriatim
import seriatim.guards
import seriatim.server
import seriatim.spark
import seriatim.telemetry
import seriatim.testing
from seriatim.core import errors
from seriatim.factory import AsyncLog

PUBLIC_MODULES = (
    seriatim.guards,
    seriatim.server,
    seriatim.spark,
    seriatim.telemetry,
    seriatim.testing,
)
CONTRACT_CODES = """
empty_append, invalid_argument, invalid_event, schema_violation, invalid_query,
pii_policy_violation, idempotency_conflict, event_sequence_invalid, conditional_append_conflict,
conflict, not_found, projection_out_of_date, projection_timeout, projection_failed,
idempotency_key_reuse, unauthorized, forbidden, limit_exceeded, lease_lost, timeout,
log_identity_changed,
backend_failure
"""


def test_exported_names() -> None:
    """F1: `__all__` is sorted and equals the visible names without submodules."""
    visible = [
        name
        for name, value in vars(seriatim).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    ]

    assert seriatim.__all__ == sorted(seriatim.__all__)
    assert sorted(visible) == seriatim.__all__


def test_exported_classes_are_defined_in_the_package() -> None:
    """F1: every exported class is defined in Seriatim under the same name."""
    for name in seriatim.__all__:
        value: Any = getattr(seriatim, name)
        if isinstance(value, seriatim.Projection):  # a shipped one
            assert value.name == name
            continue
        assert value.__module__.startswith("seriatim."), name
        assert value.__qualname__ in (name, "open_log"), name
        assert value.__doc__, name


@pytest.mark.parametrize("module", PUBLIC_MODULES, ids=lambda module: module.__name__)
def test_names_of_public_modules(module: ModuleType) -> None:
    """F1: each name of `__all__` exists, is unique, has a docstring and belongs to Seriatim."""
    values = {name: getattr(module, name) for name in module.__all__}

    assert sorted(module.__all__) == sorted(set(module.__all__))
    assert set(module.__all__) <= set(dir(module))
    for name, value in values.items():
        if not isinstance(value, tuple):  # rules of a guard
            assert type(value).__module__.startswith("seriatim.") or value.__doc__, name
            assert getattr(value, "__module__", "seriatim.").startswith("seriatim."), name


@pytest.mark.parametrize("module", [seriatim.spark, seriatim.server, seriatim.testing])
def test_an_unknown_name_is_an_attribute_error(module: ModuleType) -> None:
    """F1: an unknown name of a lazy module is an AttributeError."""
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = module.missing


@pytest.mark.parametrize(
    ("module", "name", "library", "extra"),
    [
        ("spark", "Projector", "pyspark", "spark"),
        ("spark", "Publisher", "confluent_kafka", "kafka"),
        ("spark", "export_delta", "deltalake", "lake"),
        ("server", "make_app", "uvicorn", "server"),
    ],
)
def test_a_missing_extra_is_named(module: str, name: str, library: str, extra: str) -> None:
    """L3: importing a name without its library names the extra to install."""
    program = (
        f"import sys; sys.modules[{library!r}] = None\n"
        f"import seriatim.{module}\n"
        f"try:\n    from seriatim.{module} import {name}\n"
        "except ModuleNotFoundError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    expected = f"{library} is required but not installed: run pip install 'seriatim[{extra}]'"
    assert (done.stdout.strip(), done.stderr) == (expected, "")


@pytest.mark.parametrize(
    "module",
    [seriatim, seriatim.guards, seriatim.server, seriatim.telemetry, seriatim.testing],
    ids=lambda module: module.__name__,
)
def test_examples_of_modules_run(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: the example in the docstring of a public module runs."""
    monkeypatch.chdir(tmp_path)
    example = textwrap.dedent((module.__doc__ or "").partition("Example:\n")[2])

    assert example
    exec(compile(example, module.__name__, "exec"), {})  # noqa: S102 - our own docstring


def test_error_codes_are_those_of_the_contract() -> None:
    """L1: each error code of the contract has one class, which is exported."""
    codes = [kind.code for kind in errors.ALL_ERRORS]

    assert sorted(codes) == sorted(re.split(r",\s*", CONTRACT_CODES.strip()))
    assert len(set(codes)) == len(codes) == 22
    leaves = set(errors.SeriatimError.__subclasses__())
    assert leaves == set(errors.ALL_ERRORS)
    kinds: list[type] = [errors.SeriatimError, *errors.ALL_ERRORS]
    for kind in kinds:
        assert getattr(seriatim, kind.__name__) is kind


def test_the_version_equals_that_of_the_project() -> None:
    """F3: the version of the package is that of pyproject.toml."""
    project = Path(__file__).parents[2] / "pyproject.toml"

    assert f'version = "{seriatim.__version__}"' in project.read_text()


def test_importing_needs_no_extra() -> None:
    """F1: importing Seriatim loads no module of an extra."""
    program = (
        "import sys, seriatim; "
        "seriatim.open('memory:').append([seriatim.NewEvent('x')]); "
        "extras = {'pytest', 'psycopg', 'psycopg_pool', 'typer', 'rich', 'jsonschema_rs'}; "
        "print(sorted(extras & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# Parts of a log that need no await, or are made of the public ones; profiles have `aio` of their
# own, and `aio.call` runs anything else.
NOT_AWAITED = {
    *("aio", "traces", "facts", "aggregates", "catalogue", "settings", "store", "telemetry"),
    *("tenant_id", "appender", "places", "draft", "read_page", "iterate_batches"),
}


def test_async_log_has_every_method() -> None:
    """B13, E7: every method of a log has an awaitable form of the same name."""
    sync = {name for name in dir(seriatim.Log) if not name.startswith("_")} - NOT_AWAITED

    assert sorted(sync - set(dir(AsyncLog))) == []
    assert hasattr(AsyncLog, "__aenter__")
    assert hasattr(AsyncLog, "__aexit__")
