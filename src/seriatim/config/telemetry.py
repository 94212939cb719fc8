"""What the environment says of traces: OpenTelemetry's own variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
DISABLED_VARIABLE = "OTEL_SDK_DISABLED"
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
