"""Spans with the OpenTelemetry SDK, and none without a tracer."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import seriatim
from seriatim import Filter, Limits, Log, NewEvent, Query, Settings
from seriatim.core.errors import ConditionalAppendConflict
from seriatim.core.request import ExpectedContext
from seriatim.telemetry import tracer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def log() -> Iterator[Log]:
    """A log in memory."""
    with seriatim.open("memory:") as opened:
        yield opened


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    """A tracer provider that traces for one test."""
    made = TracerProvider()
    undo = tracer.use_provider(made)
    yield made
    undo()
    made.shutdown()


@pytest.fixture
def spans(provider: TracerProvider) -> InMemorySpanExporter:
    """The exporter of finished spans."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def only_span(spans: InMemorySpanExporter) -> ReadableSpan:
    """Return the only finished span."""
    [found] = spans.get_finished_spans()
    return found


def context_of(span: ReadableSpan) -> Any:
    """Return the context of a span."""
    return span.get_span_context()


def traceparent_of(span: ReadableSpan) -> str:
    """Return the traceparent header of a span."""
    ids = context_of(span)
    return f"00-{ids.trace_id:032x}-{ids.span_id:016x}-{ids.trace_flags:02x}"


def test_the_span_of_an_append(log: Log, spans: InMemorySpanExporter) -> None:
    """M2: the span of an append has tenant, type, ids, count and position."""
    made = log.for_tenant("acme").append(
        [NewEvent("a", {"p": 1}, stream=("s", "1"), event_id="e-1", request_id="r"), NewEvent("b")]
    )

    span = only_span(spans)
    assert made.records[0].event_id == "e-1"
    assert span.name == "seriatim.append"
    assert span.kind is SpanKind.PRODUCER
    assert dict(span.attributes or {}) == {
        "seriatim.tenant": "acme",
        "seriatim.event_type": "a",
        "seriatim.event_id": "e-1",
        "seriatim.stream_type": "s",
        "seriatim.stream_id": "1",
        "seriatim.request_id": "r",
        "seriatim.replayed": False,
        "seriatim.count": 2,
        "seriatim.first_position": 1,
    }


def test_events_carry_the_trace(log: Log, spans: InMemorySpanExporter) -> None:
    """M2: an event without a trace gets that of its append, which does not change its hash."""
    plain = NewEvent("a", {"n": 1})
    own = NewEvent("a", metadata={"traceparent": PARENT, "more": "1"})
    first, second = log.append([plain, own]).records

    assert first.metadata == {"traceparent": traceparent_of(only_span(spans))}
    assert second.metadata == {"traceparent": PARENT, "more": "1"}
    with seriatim.open("memory:") as other:
        undo = tracer.use_provider(None)
        untraced = other.append([plain]).records[0]
        undo()
    assert first.payload_hash == untraced.payload_hash
    assert untraced.metadata == {}


def test_a_retry_under_another_trace(log: Log, spans: InMemorySpanExporter) -> None:
    """M2: a retry under another trace is a replay and returns the first trace."""
    event = NewEvent("a", event_id="e")
    log.append([event], idempotency_key="k")
    again = log.append([event], idempotency_key="k")

    first, second = spans.get_finished_spans()
    assert again.replayed
    assert again.records[0].metadata["traceparent"] == traceparent_of(first)
    assert (second.attributes or {})["seriatim.replayed"] is True


def test_spans_are_children_of_the_callers_span(log: Log, spans: InMemorySpanExporter) -> None:
    """M2: spans of appends, reads and queries are children of the caller's span."""

    async def appends() -> None:
        condition = ExpectedContext(Query([Filter(types=["never"])]), None)
        await asyncio.gather(
            log.aio.append([NewEvent("a")]), log.aio.append([NewEvent("b")], condition)
        )
        await log.aio.query()

    with tracer.span("caller", "server", parent=tracer.extract({"TraceParent": PARENT})):
        asyncio.run(appends())
        list(log.read())
        log.query()

    *inner, outer = spans.get_finished_spans()
    names = sorted(one.name for one in inner)
    assert names == ["seriatim.append"] * 2 + ["seriatim.query"] * 2 + ["seriatim.read"]
    assert {one.parent.span_id for one in inner if one.parent} == {context_of(outer).span_id}
    assert {f"{context_of(one).trace_id:032x}" for one in [outer, *inner]} == {PARENT[3:35]}
    assert {record.metadata["traceparent"] for record in log.read()} == {
        traceparent_of(one) for one in inner if one.name == "seriatim.append"
    }


def test_the_span_of_a_refused_append(log: Log, spans: InMemorySpanExporter) -> None:
    """M2: the span of a refused append has the error code, and not its message."""
    log.append([NewEvent("a")])
    with pytest.raises(ConditionalAppendConflict):
        log.append([NewEvent("b")], ExpectedContext(Query([Filter(types=["a"])]), None))

    _, span = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "conditional_append_conflict"
    assert (span.attributes or {})["error.type"] == "conditional_append_conflict"
    assert (span.attributes or {})["seriatim.event_type"] == "b"


def test_the_spans_of_reads_and_queries(log: Log, spans: InMemorySpanExporter) -> None:
    """M2: the spans of a page and a query have the number of records."""
    log.append([NewEvent("a") for _ in range(3)])
    spans.clear()
    log.page(limit=2)
    log.query(Query([Filter(types=["a"])]))

    read, query = spans.get_finished_spans()
    assert read.attributes == {
        "seriatim.tenant": "default",
        "seriatim.count": 2,
        "seriatim.after": 0,
        "seriatim.last_scanned": 2,
    }
    assert query.attributes == {
        "seriatim.tenant": "default",
        "seriatim.count": 3,
        "seriatim.head": 3,
        "seriatim.context_version": 3,
    }


def test_spans_contain_no_payload(log: Log, spans: InMemorySpanExporter) -> None:
    """M2: spans contain no payloads, tags, keys or messages of other errors."""
    log.append([NewEvent("a", {"x": "PRIVATE"}, tags=("PRIVATE",))], idempotency_key="PRIVATE")
    with pytest.raises(ValueError, match="PRIVATE"), tracer.span("work"):
        raise ValueError("PRIVATE password=hunter2hunter2")

    assert all("PRIVATE" not in span.to_json() for span in spans.get_finished_spans())


@pytest.mark.parametrize(
    "metadata", [{f"k{n}": "v" for n in range(64)}, {f"k{n:02}": "v" * 509 for n in range(16)}]
)
def test_an_event_without_space_for_its_trace(
    log: Log, spans: InMemorySpanExporter, metadata: dict[str, str]
) -> None:
    """M2: an event without space for its trace metadata is stored without it."""
    record = log.append([NewEvent("a", metadata=metadata)]).records[0]

    assert record.metadata == metadata


def test_trace_metadata_refused_by_the_guard(spans: InMemorySpanExporter) -> None:
    """M2: trace metadata that the guard refuses is omitted, and the append succeeds."""
    parent = tracer.extract({"traceparent": PARENT, "tracestate": "a=AKIAIOSFODNN7EXAMPLE"})
    with seriatim.open("memory:") as log, tracer.span("caller", parent=parent):
        record = log.append([NewEvent("a")]).records[0]

    assert record.metadata == {}


def test_trace_metadata_over_a_limit(spans: InMemorySpanExporter) -> None:
    """M2: trace metadata over a limit of the log are omitted."""
    settings = Settings(limits=Limits(metadata_entries=1))
    parent = tracer.extract({"traceparent": PARENT, "tracestate": "a=b"})
    with seriatim.open("memory:", settings=settings) as log, tracer.span("c", parent=parent):
        record = log.append([NewEvent("a")]).records[0]

    assert record.metadata == {}


@pytest.mark.parametrize(
    "headers",
    [{}, {"traceparent": "t-7"}, {"other": PARENT}, {"traceparent": PARENT.replace("0af", "zzz")}],
)
def test_invalid_headers_are_no_parent(
    headers: dict[str, str], spans: InMemorySpanExporter
) -> None:
    """M2: headers without a valid trace are no parent."""
    assert tracer.extract(headers) is None


def test_inject_and_extract_round_trip(spans: InMemorySpanExporter) -> None:
    """M2: an injected context can be extracted; a tracestate that is too long is omitted."""
    state = "a=" + "x" * 200
    parent = tracer.extract({"traceparent": PARENT, "tracestate": state})
    with tracer.span("client", "client", {"a": 1, "none": None}, parent) as span:
        headers = tracer.inject()
        ids = tracer.current_ids()
        span.set({"b": True, "none": None})
        span.rename("renamed")
        span.fail("limit_exceeded")
    long = tracer.extract(
        {"traceparent": PARENT, "tracestate": ",".join([f"b{n}=" + "x" * 200 for n in range(3)])}
    )
    with tracer.span("client", parent=long):
        assert set(tracer.inject()) == {"traceparent"}

    first, _ = spans.get_finished_spans()
    assert headers == {"traceparent": traceparent_of(first), "tracestate": state}
    assert ids == (f"{context_of(first).trace_id:032x}", f"{context_of(first).span_id:016x}")
    assert first.name == "renamed"
    assert first.kind is SpanKind.CLIENT
    assert first.attributes == {"a": 1, "b": True, "error.type": "limit_exceeded"}
    assert tracer.inject() == {}
    assert tracer.current_ids() is None


class Failing(SpanProcessor):
    """A span processor that fails at the start or end of a span."""

    def __init__(self, *, at_start: bool) -> None:
        self._at_start = at_start

    def on_start(self, *_: object, **__: object) -> None:
        """Fail if requested."""
        if self._at_start:
            raise RuntimeError

    def on_end(self, *_: object) -> None:
        """Fail."""
        raise RuntimeError


@pytest.mark.parametrize("at_start", [True, False])
def test_failing_tracer_is_logged(
    log: Log, provider: TracerProvider, at_start: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """M2: a failing tracer is logged and affects no caller."""
    provider.add_span_processor(Failing(at_start=at_start))
    with caplog.at_level(logging.ERROR, "seriatim"):
        assert log.append([NewEvent("a")]).first_position == 1

    assert "the tracer failed to" in caplog.text


def test_no_spans_without_a_tracer(log: Log) -> None:
    """M2: without a tracer there are no spans, and events have no trace."""
    with tracer.span("work", attributes={"a": 1}) as span:
        span.set({"b": 2})
        span.rename("c")
        span.fail("d")
        assert tracer.inject() == {}
        assert tracer.extract({"traceparent": PARENT}) is None
        assert log.append([NewEvent("a")]).records[0].metadata == {}
    assert not tracer.is_active()
    assert tracer.current_ids() is None


def test_opentelemetry_is_not_imported() -> None:
    """M2: Seriatim imports neither OpenTelemetry nor the Prometheus client by itself."""
    code = """
import sys, seriatim
from seriatim.telemetry import log_format, log_metrics, metrics, span_export, tracer
log = seriatim.open("memory:")
log.append([seriatim.NewEvent("a")]); list(log.read()); log.query()
with tracer.span("x"):
    tracer.inject()
print([name for name in sys.modules if name.startswith(("opentelemetry", "prometheus"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
