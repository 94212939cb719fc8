"""Spans on their way out: OpenTelemetry's SDK, sending by OTLP over HTTP, for processes of ours."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from seriatim.config.telemetry import adopt, otel_variables, spans_wanted
from seriatim.core.errors import BackendFailure
from seriatim.telemetry import tracing

logger = logging.getLogger("seriatim")

_FLUSH_MS = 5_000


class Exporting(msgspec.Struct, frozen=True):
    """How the spans of a job leave its processes: its tasks elsewhere are sent this."""

    service: str
    variables: Mapping[str, str]


class _Process:
    """What this process has set up."""

    exporting: Exporting | None = None
    provider: Any = None


def current() -> Exporting | None:
    """Return how this process sends spans, None if it does not."""
    return _Process.exporting


@contextmanager
def spans_sent(service: str, *, wanted: bool | None = None) -> Iterator[None]:
    """Send the spans of this process while a block runs, and what is left at its end.

    Without a wish, the environment decides: it names an endpoint. A tracer that is there already,
    by `opentelemetry-instrument` for one, is left in place.
    """
    asked = spans_wanted() if wanted is None else wanted
    if not asked or tracing.active():
        yield
        return
    try:
        provider = _begin(Exporting(service, otel_variables()))
    except BackendFailure as error:
        if wanted:
            raise
        logger.warning("no spans are sent: %s", error.message)
        yield
        return
    try:
        yield
    finally:
        provider.shutdown()
        _Process.exporting = None


@contextmanager
def joined(exporting: Exporting | None) -> Iterator[None]:
    """Send the spans of a task as its job does; where that cannot be, the task runs without."""
    if exporting is not None and _Process.provider is None and not tracing.active():
        adopt(exporting.variables)
        try:
            _begin(exporting)
        except BackendFailure as error:
            logger.warning("a task sends no spans: %s", error.message)
    try:
        yield
    finally:
        if exporting is not None and _Process.provider is not None:
            _Process.provider.force_flush(_FLUSH_MS)


def _begin(exporting: Exporting) -> Any:
    """Set the SDK up as this process's tracer."""
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an extra
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        msg = f"spans need OpenTelemetry and miss {error.name}: pip install 'seriatim[otel]'"
        raise BackendFailure(msg, retryable=False) from error
    provider = TracerProvider(resource=Resource.create(_resource(exporting)))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    _Process.provider, _Process.exporting = provider, exporting
    return provider


def _resource(exporting: Exporting) -> dict[str, str]:
    """Return the service's name, unless the environment gives another one."""
    said = exporting.variables
    named = "OTEL_SERVICE_NAME" in said or "service.name=" in said.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return {} if named else {"service.name": exporting.service}
