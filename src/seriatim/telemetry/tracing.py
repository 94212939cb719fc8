"""Spans of OpenTelemetry around what the log does; where nobody traces, they cost next to nothing.

Nothing here imports OpenTelemetry: whoever set a tracer up has done so already.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

from seriatim.core.errors import SeriatimError
from seriatim.core.reasons import reason_of

logger = logging.getLogger("seriatim")

Kind = Literal["internal", "server", "client", "producer", "consumer"]
Attributes = Mapping[str, str | bool | int | float | None]
Parent = Any  # OpenTelemetry's own context, as `extract` gives it

TRACE_FIELDS = ("traceparent", "tracestate")
_STATE_MAX = 512  # what W3C asks everyone to carry
_API = "opentelemetry.trace"


class _Choice:
    """The provider that was chosen instead of the global one, and the tracer of the last one."""

    provider: Any = None
    known: tuple[Any, Any] = (None, None)


def active() -> bool:
    """Tell whether somebody traces."""
    return _tracer() is not None


def use(provider: Any) -> Callable[[], None]:
    """Trace with a tracer provider instead of the global one; returns its undoing."""
    before, _Choice.provider = _Choice.provider, provider

    def undo() -> None:
        _Choice.provider = before

    return undo


class Span:
    """A block of work that nobody traces; what it is told goes nowhere."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """End, however it ends."""

    def set(self, attributes: Attributes) -> None:
        """Add what became known; None is left out."""

    def rename(self, name: str) -> None:
        """Take another name, such as a route once it is known."""

    def fail(self, code: str) -> None:
        """Mark the work as failed, by a code or a reason without secrets."""


_NO_SPAN = Span()


def span(
    name: str,
    kind: Kind = "internal",
    attributes: Attributes | None = None,
    parent: Parent | None = None,
) -> Span:
    """Return a span for a `with` block: a child of the parent, else of the current one."""
    tracer = _tracer()
    return _NO_SPAN if tracer is None else _Live(tracer, name, kind, attributes or {}, parent)


def inject() -> dict[str, str]:
    """Return the headers that carry the current span on, none if nobody traces."""
    carrier: dict[str, str] = {}
    if active():
        _propagator().inject(carrier)
    if len(carrier.get("tracestate", "")) > _STATE_MAX:
        del carrier["tracestate"]
    return carrier


def extract(headers: Mapping[str, str]) -> Parent | None:
    """Return the span that headers or an event's metadata carry, as a parent of others."""
    if not headers or not active():
        return None
    carrier = {name.lower(): value for name, value in headers.items()}
    if "traceparent" not in carrier:
        return None
    from opentelemetry.context import Context  # noqa: PLC0415 - an extra

    found = _propagator().extract(carrier, Context())
    valid = sys.modules[_API].get_current_span(found).get_span_context().is_valid
    return found if valid else None


def current_ids() -> tuple[str, str] | None:
    """Return the ids of the current trace and span, for logs."""
    if not active():
        return None
    api: Any = sys.modules[_API]
    here = api.get_current_span().get_span_context()
    if not here.is_valid:
        return None
    return api.format_trace_id(here.trace_id), api.format_span_id(here.span_id)


class _Live(Span):
    """A span that is traced; a tracer that fails is logged and harms nobody."""

    def __init__(
        self, tracer: Any, name: str, kind: Kind, attributes: Attributes, parent: Parent | None
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
                attributes=_present(self._attributes),
            )
        except Exception:
            logger.exception("a tracer failed to begin %s", self._name)
            return self
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
                self.fail(error.code if isinstance(error, SeriatimError) else reason_of(error))
            self._span.end()
        except Exception:
            logger.exception("a tracer failed to end %s", self._name)

    def set(self, attributes: Attributes) -> None:
        if self._span is not None:
            self._span.set_attributes(_present(attributes))

    def rename(self, name: str) -> None:
        if self._span is not None:
            self._span.update_name(name)

    def fail(self, code: str) -> None:
        if self._span is not None:
            api: Any = sys.modules[_API]
            self._span.set_status(api.Status(api.StatusCode.ERROR, code))
            self._span.set_attribute("error.type", code.partition(":")[0])


def _present(attributes: Attributes) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _tracer() -> Any:
    provider = _Choice.provider
    if provider is None:
        api: Any = sys.modules.get(_API)
        if api is None:
            return None
        provider = api.get_tracer_provider()
        if isinstance(provider, api.ProxyTracerProvider):  # nobody set one up
            return None
    known = _Choice.known
    if known[0] is not provider:
        known = _Choice.known = (provider, provider.get_tracer("seriatim"))
    return known[1]


def _propagator() -> Any:
    from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - an extra

    return tracecontext.TraceContextTextMapPropagator()
