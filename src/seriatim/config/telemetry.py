"""The environment variables of OpenTelemetry and Prometheus."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
DISABLED_VARIABLE = "OTEL_SDK_DISABLED"
METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_PREFIX = "OTEL_"


def tracing_enabled() -> bool:
    """Return whether the environment has an endpoint for spans and does not disable the SDK."""
    disabled = os.environ.get(DISABLED_VARIABLE, "").lower() == "true"
    return not disabled and any(os.environ.get(name) for name in ENDPOINT_VARIABLES)


def otel_variables() -> dict[str, str]:
    """Return all variables of OpenTelemetry, to pass them to processes on other machines."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PREFIX)}


def adopt_otel_variables(variables: Mapping[str, str]) -> None:
    """Set variables of OpenTelemetry that another process sent, unless they are set here."""
    for name, value in variables.items():
        if name.startswith(_PREFIX):
            os.environ.setdefault(name, value)


def metrics_folder() -> Path | None:
    """Return the directory through which processes share their metrics, or None."""
    name = os.environ.get(METRICS_VARIABLE)
    return Path(name) if name else None


@contextmanager
def share_metrics() -> Iterator[None]:
    """Let processes that are started in the block share their metrics.

    It uses a temporary directory, unless the environment already names one.
    """
    if metrics_folder() is not None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="seriatim-metrics-") as folder:
        os.environ[METRICS_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[METRICS_VARIABLE]
