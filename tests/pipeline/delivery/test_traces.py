"""One trace from the append to the effect, through the headers of a message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import seriatim
from seriatim import NewEvent
from seriatim.config.delivery import RegistrySettings
from seriatim.core.event import EventRecord, LogIdentity
from seriatim.core.handler import Handler, RetryPolicy, handler
from seriatim.factory import open_registry
from seriatim.pipeline.kafka.messages import HeaderBuilder, encode_value
from seriatim.pipeline.work.tasks import KafkaTask, TaskSpec
from seriatim.telemetry import tracer


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The exporter of the spans of this process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    undo = tracer.use_provider(provider)
    yield exporter
    undo()
    provider.shutdown()


def append_traced() -> list[EventRecord]:
    """Append within a caller's span, and return the records."""
    with seriatim.open("memory:") as log, tracer.span("caller", "server"):
        log.append([NewEvent("order.placed", {"n": 1}, stream=("order", "1"))])
        return list(log.append([NewEvent("strange")]).records) + list(log.read(limit=1))


def handle_messages(events: list[EventRecord], declared: Handler, tmp_path: Path) -> None:
    """Let a task of a worker handle messages of events."""
    place = f"sqlite:///{tmp_path}/registry.db"
    registry = open_registry(place, RegistrySettings())
    registry.declare(declared)
    registry.close()
    headers = {"first_seq": b"1", "log_id": "8a4f7d8e-2b58-4c6e-9d5b-000000000001", "epoch": 1}
    rows = [
        {"topic": "t", "partition": 0, "offset": n, "value": encode_value(one), **headers}
        for n, one in enumerate(events)
    ]
    work = TaskSpec(handler=declared, registry_url=place, settings=RegistrySettings())
    task = KafkaTask(spec=work, tenant_id=None)
    list(task(pa.Table.from_pylist(rows).to_batches()))


def spans_named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    """Return the spans with a name."""
    return [span for span in spans.get_finished_spans() if span.name == name]


def ids_of(span: ReadableSpan) -> tuple[int, int]:
    """Return the trace id and the span id of a span."""
    found: Any = span.get_span_context()
    return found.trace_id, found.span_id


@pytest.mark.parametrize("awaited", [False, True])
def test_a_trace_from_append_to_effect(
    spans: InMemorySpanExporter, tmp_path: Path, awaited: bool
) -> None:
    """M2: the span of an append is in the message header, and the parent of the handler's span."""
    inside: list[tuple[str, str] | None] = []

    def note(_event: Any, _context: Any) -> None:
        inside.append(tracer.current_ids())

    async def note_later(event: Any, context: Any) -> None:
        await asyncio.sleep(0)
        note(event, context)

    declare = handler("noter", events=["order.*"], effect="keyed")
    events = append_traced()
    header = dict(HeaderBuilder(LogIdentity("x", 1), frozenset()).build(events[1]))["traceparent"]
    handle_messages(events, declare(note_later if awaited else note), tmp_path)

    first, _ = spans_named(spans, "seriatim.append")
    [effect] = spans_named(spans, "seriatim.handle")
    assert isinstance(header, bytes)
    assert header.decode().split("-")[1:3] == [
        f"{ids_of(first)[0]:032x}",
        f"{ids_of(first)[1]:016x}",
    ]
    assert ids_of(effect)[0] == ids_of(first)[0]
    assert effect.parent is not None
    assert effect.parent.span_id == ids_of(first)[1]
    assert effect.kind is SpanKind.CONSUMER
    assert inside == [(f"{ids_of(effect)[0]:032x}", f"{ids_of(effect)[1]:016x}")]
    attributes = effect.attributes or {}
    assert (attributes["seriatim.handler"], attributes["seriatim.event_type"]) == (
        "noter",
        "order.placed",
    )


def test_the_span_of_a_failed_effect(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    """M2: a failed effect marks its span with the error type, without the message."""

    def fail(_event: Any, _context: Any) -> None:
        raise ValueError("password=hunter2hunter2")

    declared = handler("noter", effect="keyed", retry=RetryPolicy(attempts=1))(fail)
    handle_messages(append_traced()[1:], declared, tmp_path)

    [effect] = spans_named(spans, "seriatim.handle")
    assert effect.status.status_code is StatusCode.ERROR
    assert (effect.attributes or {})["error.type"] == "ValueError"
    assert "hunter2" not in effect.to_json()


def test_events_without_a_trace(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    """M2: an event without a valid trace is handled in a new trace."""
    undo = tracer.use_provider(None)
    with seriatim.open("memory:") as log:
        log.append([NewEvent("a"), NewEvent("b", metadata={"traceparent": "t-7"})])
        events = list(log.read())
    undo()
    handle_messages(
        events, handler("noter", effect="keyed")(lambda _event, _context: None), tmp_path
    )

    found = spans_named(spans, "seriatim.handle")
    assert [one.parent for one in found] == [None, None]
    assert len({ids_of(one)[0] for one in found}) == 2
