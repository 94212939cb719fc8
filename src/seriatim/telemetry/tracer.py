"""OpenTelemetry spans around operations of the log; almost free if tracing is not set up.

This module does not import OpenTelemetry at start: a process that traces has imported it already.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

from seriatim.core.error_summary import summarize_error
from seriatim.core.errors import SeriatimError

logger = logging.getLogger("seriatim")

SpanKind = Literal["internal", "server", "client", "producer", "consumer"]
Attributes = Mapping[str, str | bool | int | float | None]
SpanParent = Any  # an OpenTelemetry context, as returned by `extract`

TRACE_FIELDS = ("traceparent", "tracestate")
_STATE_MAX = 512  # the length of a tracestate that W3C requires everyone to propagate
_API = "opentelemetry.trace"


class _Choice:
    """The provider to use instead of the global one, and a cached pair of provider and tracer."""

    provider: Any = None
    cached: tuple[Any, Any] = (None, None)


def is_active() -> bool:
    """Return whether a tracer is set up."""
    return _find_tracer() is not None


def use_provider(provider: Any) -> Callable[[], None]:
    """Trace with a tracer provider instead of the global one.

    Args:
        provider: A `TracerProvider` of the OpenTelemetry SDK; None for the global one.

    Returns:
        A function that restores the previous provider.

    Example:
        restore = use_provider(None)
        log.append([NewEvent("order.placed")])
        restore()
    """
    previous, _Choice.provider = _Choice.provider, provider

    def restore() -> None:
        _Choice.provider = previous

    return restore


class Span:
    """A span that is not recorded: the base class, used if tracing is not set up."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """End the span; an exception marks it as failed."""

    def set(self, attributes: Attributes) -> None:
        """Add attributes; those with the value None are left out."""

    def rename(self, name: str) -> None:
        """Change the name, for example to a route once it is known."""

    def fail(self, code: str) -> None:
        """Mark the span as failed with an error code, or a reason without secrets."""


_NO_SPAN = Span()


def span(
    name: str,
    kind: SpanKind = "internal",
    attributes: Attributes | None = None,
    parent: SpanParent | None = None,
) -> Span:
    """Return a span for a `with` block: a child of `parent`, or else of the current span.

    Example:
        with tracer.span("import", attributes={"file": name}) as span:
            span.set({"count": import_file(name)})
    """
    tracer = _find_tracer()
    if tracer is None:
        return _NO_SPAN
    return _RecordedSpan(tracer, name, kind, attributes or {}, parent)


def inject() -> dict[str, str]:
    """Return the W3C headers of the current span; empty if tracing is not set up."""
    carrier: dict[str, str] = {}
    if is_active():
        _make_propagator().inject(carrier)
    if len(carrier.get("tracestate", "")) > _STATE_MAX:
        del carrier["tracestate"]
    return carrier


def extract(headers: Mapping[str, str]) -> SpanParent | None:
    """Return the parent context in headers or in an event's metadata, or None."""
    if not headers or not is_active():
        return None
    carrier = {name.lower(): value for name, value in headers.items()}
    if "traceparent" not in carrier:
        return None
    from opentelemetry.context import Context

    # Into an empty context: by default the current span would stay the parent if the headers are
    # malformed.
    context = _make_propagator().extract(carrier, Context())
    valid = sys.modules[_API].get_current_span(context).get_span_context().is_valid
    return context if valid else None


def current_ids() -> tuple[str, str] | None:
    """Return the ids of the current trace and span, or None."""
    if not is_active():
        return None
    api: Any = sys.modules[_API]
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return api.format_trace_id(context.trace_id), api.format_span_id(context.span_id)


class _RecordedSpan(Span):
    """A recorded span; an exception in the tracer is logged, not raised."""

    def __init__(
        self,
        tracer: Any,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        parent: SpanParent | None,
    ) -> None:
        self._tracer = tracer
        self._name = name
        self._kind = kind
        self._attributes = attributes
        self._parent = parent
        self._span: Any = None
        self._entered: Any = None

    def __enter__(self) -> Self:
        api: Any = sys.modules[_API]
        try:
            self._span = self._tracer.start_span(
                self._name,
                context=self._parent,
                kind=api.SpanKind[self._kind.upper()],
                attributes=_omit_none(self._attributes),
            )
        except Exception:
            logger.exception("the tracer failed to start the span %s", self._name)
            return self
        # Messages of exceptions may quote payloads: `fail` sets a code instead.
        self._entered = api.use_span(
            self._span, record_exception=False, set_status_on_exception=False
        )
        self._entered.__enter__()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._span is None:
            return
        self._entered.__exit__(None, None, None)
        try:
            if error is not None:
                self.fail(
                    error.code if isinstance(error, SeriatimError) else summarize_error(error)
                )
            self._span.end()
        except Exception:
            logger.exception("the tracer failed to end the span %s", self._name)

    def set(self, attributes: Attributes) -> None:
        if self._span is not None:
            self._span.set_attributes(_omit_none(attributes))

    def rename(self, name: str) -> None:
        if self._span is not None:
            self._span.update_name(name)

    def fail(self, code: str) -> None:
        if self._span is not None:
            api: Any = sys.modules[_API]
            self._span.set_status(api.Status(api.StatusCode.ERROR, code))
            self._span.set_attribute("error.type", code.partition(":")[0])


def _omit_none(attributes: Attributes) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _find_tracer() -> Any:
    """Return the tracer, or None if no provider is set up."""
    provider = _Choice.provider
    if provider is None:
        api: Any = sys.modules.get(_API)
        if api is None:
            return None
        provider = api.get_tracer_provider()
        if isinstance(provider, api.ProxyTracerProvider):  # no provider is set up
            return None
    # Compared each time, since a program may set another provider at any time.
    cached = _Choice.cached
    if cached[0] is not provider:
        cached = _Choice.cached = (provider, provider.get_tracer("seriatim"))
    return cached[1]


def _make_propagator() -> Any:
    from opentelemetry.trace.propagation import tracecontext

    return tracecontext.TraceContextTextMapPropagator()
