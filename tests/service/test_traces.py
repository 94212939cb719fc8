"""M2: a trace is propagated through client, service and store, and into the event."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import seriatim
from seriatim import Log, NewEvent
from seriatim.telemetry import tracer
from tests.fixtures.service import RunningService, run_service


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The spans of the client and of the service."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    undo = tracer.use_provider(provider)
    yield exporter
    undo()
    provider.shutdown()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """A service on an empty log."""
    with run_service(f"sqlite:///{tmp_path}/log.db") as service:
        yield service


@pytest.fixture
def log(service: RunningService) -> Iterator[Log]:
    """The log of the service, through the client."""
    with seriatim.open(service.url, token=service.token()) as opened:
        yield opened


def context_of(span: ReadableSpan) -> Any:
    """Return the context of a span."""
    return span.get_span_context()


def spans_named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    """Return the spans with a name, in the order in which they ended."""
    return [span for span in spans.get_finished_spans() if span.name == name]


def test_an_append_is_one_trace(log: Log, spans: InMemorySpanExporter) -> None:
    """M2: spans of client, service and store form one trace, which the event carries."""
    spans.clear()
    record = log.append([NewEvent("a", {})]).records[0]

    inner, outer = spans_named(spans, "seriatim.append")
    [served] = spans_named(spans, "POST /v1/appends")
    assert served.parent is not None
    assert inner.parent is not None
    assert served.parent.span_id == context_of(outer).span_id
    assert inner.parent.span_id == context_of(served).span_id
    assert f"{context_of(outer).trace_id:032x}" in record.metadata["traceparent"]
    assert list(log.read()) == [record]


def test_duplicates_of_a_traced_append_get_one_response(
    service: RunningService, log: Log, spans: InMemorySpanExporter
) -> None:
    """C5, M2: duplicates receive the trace id of the first response."""
    body = json.dumps({"events": [{"event_type": "a"}, {"event_type": "b"}]})
    headers = {
        "authorization": f"Bearer {service.token()}",
        "content-type": "application/json",
        "idempotency-key": "k",
    }
    responses = []
    for _ in range(2):
        connection = http.client.HTTPConnection("127.0.0.1", service.port)
        connection.request("POST", "/v1/events", body, headers)
        responses.append(connection.getresponse().read())
        connection.close()

    assert responses[0] == responses[1]
    metadata = json.loads(responses[0])["added"]["metadata"]
    assert [record.metadata for record in log.read()] == [metadata, metadata]
    assert "traceparent" in metadata


def test_a_read_is_one_trace(log: Log, spans: InMemorySpanExporter) -> None:
    """M2: the spans of a read over HTTP belong to one trace."""
    spans.clear()
    log.page()

    inner, outer = spans_named(spans, "seriatim.read")
    [served] = spans_named(spans, "GET /v1/events")
    assert context_of(inner).trace_id == context_of(outer).trace_id
    assert served.attributes is not None
    assert served.attributes["http.response.status_code"] == 200
