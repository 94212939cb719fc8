"""M1: telemetry events, which are delivered to listeners in the process."""

from __future__ import annotations

import logging

import pytest

from seriatim.core.errors import SeriatimError
from seriatim.factory import Log
from seriatim.log.catalogue import EventFields
from seriatim.telemetry.event_bus import TelemetryEvent
from seriatim.testing.aio import run_coroutine
from seriatim.testing.factories import event, events

FIELDS: EventFields = {
    "stream": ("order", "o-1"),
    "producer_id": "shop",
    "request_id": "r-1",
    "idempotency_key": "k",
}
METADATA = {
    "tenant_id": "default",
    "stream_type": "order",
    "stream_id": "o-1",
    "event_type": "order.placed",
    "producer_id": "shop",
    "request_id": "r-1",
}


class TelemetryContract:
    """M1: names, measurements and metadata of telemetry events, never payloads."""

    @pytest.fixture
    def emitted(self, log: Log) -> list[TelemetryEvent]:
        """All telemetry events of the log from now on."""
        reported: list[TelemetryEvent] = []
        log.telemetry.subscribe(reported.append)
        return reported

    def test_append_emits_its_duration_and_count(
        self, log: Log, emitted: list[TelemetryEvent]
    ) -> None:
        """M1: `store.append.stop` has count, duration and metadata."""
        log.append([event("order.placed", **FIELDS)])

        (reported,) = emitted
        assert reported.name == "store.append.stop"
        assert reported.metadata == METADATA | {"replayed": False}
        assert reported.measurements["count"] == 1
        assert reported.measurements["duration_s"] > 0

    def test_retry_emits_a_reuse(self, log: Log, emitted: list[TelemetryEvent]) -> None:
        """M1: a retry also emits `store.idempotency.reuse`."""
        for _ in range(2):
            log.append([event("order.placed", **FIELDS)])

        assert [reported.name for reported in emitted] == [
            "store.append.stop",
            "store.append.stop",
            "store.idempotency.reuse",
        ]
        assert emitted[1].metadata == METADATA | {"replayed": True}
        assert (emitted[2].metadata, emitted[2].measurements) == (METADATA, {"count": 1})

    def test_refused_append_emits_its_error_code(
        self, log: Log, emitted: list[TelemetryEvent]
    ) -> None:
        """M1: `store.append.exception` contains the error code, in whatever layer it arose."""
        misnumbered: EventFields = {**FIELDS, "stream_seq": 9}
        with pytest.raises(SeriatimError):
            log.append([event("order.placed", **misnumbered)])
        with pytest.raises(SeriatimError):
            log.append([event("")])

        first, second = emitted
        assert (first.name, second.name) == ("store.append.exception",) * 2
        assert first.metadata == METADATA | {"error_code": "event_sequence_invalid"}
        assert second.metadata["error_code"] == "invalid_event"
        assert second.metadata["tenant_id"] == "default"
        assert first.measurements["duration_s"] > 0

    def test_read_emits_each_page(self, log: Log, emitted: list[TelemetryEvent]) -> None:
        """M1: `store.read_batch.stop` is emitted for every page, with its number of events."""
        log.append(events(5))
        emitted.clear()

        list(log.read_batches(batch_size=2))
        log.page(types=["absent"])

        assert {reported.name for reported in emitted} == {"store.read_batch.stop"}
        assert [reported.measurements["count"] for reported in emitted] == [2, 2, 1, 0]
        assert [reported.metadata["last_scanned"] for reported in emitted] == [2, 4, 5, 5]
        assert {reported.metadata["tenant_id"] for reported in emitted} == {"default"}

    def test_async_appends_emit_the_same_events(
        self, log: Log, emitted: list[TelemetryEvent]
    ) -> None:
        """M1: async appends emit the same events."""
        run_coroutine(log.aio.append([event("order.placed", **FIELDS)]))

        assert [reported.metadata for reported in emitted] == [METADATA | {"replayed": False}]

    def test_events_name_the_tenant(self, log: Log, emitted: list[TelemetryEvent]) -> None:
        """M1: the log of another tenant emits events with that tenant."""
        log.for_tenant("other").append(events(1))

        assert [reported.metadata["tenant_id"] for reported in emitted] == ["other"]

    def test_telemetry_never_contains_payloads(
        self, log: Log, emitted: list[TelemetryEvent]
    ) -> None:
        """M1: no telemetry event holds a payload."""
        log.append([event(payload={"x": "private-9731"}, tags=("private-9731",))])
        list(log.read())

        assert emitted
        assert "private-9731" not in str(emitted)

    def test_failing_listener_does_not_affect_others(
        self, log: Log, emitted: list[TelemetryEvent], caplog: pytest.LogCaptureFixture
    ) -> None:
        """M1: a listener that fails is logged; the append and other listeners are not affected."""

        def fail(_: TelemetryEvent) -> None:
            msg = "a broken listener"
            raise ValueError(msg)

        undo = log.telemetry.subscribe(fail)
        with caplog.at_level(logging.ERROR):
            log.append(events(1))
        undo()
        log.append(events(1))

        assert len(emitted) == 2
        assert caplog.text.count("a telemetry listener failed") == 1
