"""Span export for Seriatim's own processes: the OpenTelemetry SDK with OTLP over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from seriatim.config.telemetry import adopt_otel_variables, otel_variables, tracing_enabled
from seriatim.core.errors import BackendFailure
from seriatim.telemetry import tracer

logger = logging.getLogger("seriatim")

_FLUSH_MS = 5_000


class SpanExport(msgspec.Struct, frozen=True):
    """The export settings of a job, passed on to its tasks in other processes."""

    service: str
    variables: Mapping[str, str]


class _Process:
    """The export of this process, if it has been set up."""

    exporting: SpanExport | None = None
    provider: Any = None


def current_span_export() -> SpanExport | None:
    """Return the export settings of this process, or None if it exports no spans."""
    return _Process.exporting


@contextmanager
def export_spans(service: str, *, enabled: bool | None = None) -> Iterator[None]:
    """Export the spans of this process while a block runs, and flush them at its end.

    A tracer that is set up already, for example by `opentelemetry-instrument`, is left in place.

    Args:
        service: The service name, unless the environment names another one.
        enabled: Whether to export; None exports if the environment names an endpoint.

    Raises:
        BackendFailure: Export is enabled explicitly and OpenTelemetry is not installed.

    Example:
        with export_spans("orders", enabled=False):
            log.append([NewEvent("order.placed")])
    """
    export = tracing_enabled() if enabled is None else enabled
    if not export or tracer.is_active():
        yield
        return
    try:
        provider = _start(SpanExport(service, otel_variables()))
    except BackendFailure as error:
        if enabled:
            raise
        logger.warning("spans are not exported: %s", error.message)
        yield
        return
    try:
        yield
    finally:
        provider.shutdown()
        _Process.exporting = None


@contextmanager
def join_span_export(exporting: SpanExport | None) -> Iterator[None]:
    """Export the spans of a task with the settings of its job, while a block runs.

    If that fails, a warning is logged and the task runs without.
    """
    if exporting is not None and _Process.provider is None and not tracer.is_active():
        adopt_otel_variables(exporting.variables)  # first: the SDK reads them when it starts
        try:
            _start(exporting)
        except BackendFailure as error:
            logger.warning("spans of a task are not exported: %s", error.message)
    try:
        yield
    finally:
        if exporting is not None and _Process.provider is not None:
            _Process.provider.force_flush(_FLUSH_MS)


def _start(exporting: SpanExport) -> Any:
    """Install the SDK as the tracer of this process."""
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        msg = f"exporting spans needs {error.name}: pip install 'seriatim[otel]'"
        raise BackendFailure(msg, retryable=False) from error
    provider = TracerProvider(resource=Resource.create(_resource_attributes(exporting)))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    _Process.provider, _Process.exporting = provider, exporting
    return provider


def _resource_attributes(exporting: SpanExport) -> dict[str, str]:
    """Return the service name, unless the environment sets one, which the SDK reads itself."""
    variables = exporting.variables
    named = "OTEL_SERVICE_NAME" in variables or "service.name=" in variables.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return {} if named else {"service.name": exporting.service}
