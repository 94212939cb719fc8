"""What the environment says of traces and metrics: the variables of their own libraries."""

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


def spans_wanted() -> bool:
    """Tell whether the environment names a place that spans are sent to."""
    off = os.environ.get(DISABLED_VARIABLE, "").lower() == "true"
    return not off and any(os.environ.get(name) for name in ENDPOINT_VARIABLES)


def otel_variables() -> dict[str, str]:
    """Return all that the environment says to OpenTelemetry, for processes elsewhere."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PREFIX)}


def adopt(variables: Mapping[str, str]) -> None:
    """Tell OpenTelemetry in this process what another one was told, unless it knows better."""
    for name, value in variables.items():
        if name.startswith(_PREFIX):
            os.environ.setdefault(name, value)


def metrics_folder() -> Path | None:
    """Return the folder through which processes share their metrics, if they do."""
    name = os.environ.get(METRICS_VARIABLE)
    return Path(name) if name else None


@contextmanager
def metrics_shared() -> Iterator[None]:
    """Let the processes that are started meanwhile share their metrics."""
    if metrics_folder() is not None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="seriatim-metrics-") as folder:
        os.environ[METRICS_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[METRICS_VARIABLE]
