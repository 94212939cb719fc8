"""M1: what happened, told in process to whoever subscribes."""
# ruff: noqa: PLR2004, S101 - tests assert expected values

from __future__ import annotations

import logging

import pytest

from seriatim.core.errors import SeriatimError
from seriatim.opening import Log
from seriatim.telemetry.bus import TelemetryEvent
from seriatim.testing.aio import run
from seriatim.testing.factories import event, events

FIELDS = {
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
    """Names, measurements and metadata; never a payload."""

    @pytest.fixture
    def seen(self, log: Log) -> list[TelemetryEvent]:
        """Everything the log tells from now on."""
        told: list[TelemetryEvent] = []
        log.telemetry.subscribe(told.append)
        return told

    def test_an_append(self, log: Log, seen: list[TelemetryEvent]) -> None:
        """M1: `store.append.stop` with count, duration and who it was."""
        log.append([event("order.placed", **FIELDS)])

        (told,) = seen
        assert told.name == "store.append.stop"
        assert told.metadata == METADATA | {"replayed": False}
        assert told.measurements["count"] == 1
        assert told.measurements["duration_s"] > 0

    def test_a_reuse(self, log: Log, seen: list[TelemetryEvent]) -> None:
        """M1: a retry tells `store.idempotency.reuse` beside its stop."""
        for _ in range(2):
            log.append([event("order.placed", **FIELDS)])

        assert [told.name for told in seen] == [
            "store.append.stop",
            "store.append.stop",
            "store.idempotency.reuse",
        ]
        assert seen[1].metadata == METADATA | {"replayed": True}
        assert (seen[2].metadata, seen[2].measurements) == (METADATA, {"count": 1})

    def test_a_refusal(self, log: Log, seen: list[TelemetryEvent]) -> None:
        """M1: `store.append.exception` carries the error's code, whoever refused."""
        with pytest.raises(SeriatimError):
            log.append([event("order.placed", **(FIELDS | {"stream_seq": 9}))])
        with pytest.raises(SeriatimError):
            log.append([event("")])

        first, second = seen
        assert (first.name, second.name) == ("store.append.exception",) * 2
        assert first.metadata == METADATA | {"error_code": "event_sequence_invalid"}
        assert second.metadata["error_code"] == "invalid_event"
        assert second.metadata["tenant_id"] == "default"
        assert first.measurements["duration_s"] > 0

    def test_a_read(self, log: Log, seen: list[TelemetryEvent]) -> None:
        """M1: `store.read_batch.stop` for every page, with how much it held."""
        log.append(events(5))
        seen.clear()

        list(log.read_batches(batch_size=2))
        log.page(types=["absent"])

        assert {told.name for told in seen} == {"store.read_batch.stop"}
        assert [told.measurements["count"] for told in seen] == [2, 2, 1, 0]
        assert [told.metadata["last_scanned"] for told in seen] == [2, 4, 5, 5]
        assert {told.metadata["tenant_id"] for told in seen} == {"default"}

    def test_awaited(self, log: Log, seen: list[TelemetryEvent]) -> None:
        """M1: awaited appends tell the same."""
        run(log.aio.append([event("order.placed", **FIELDS)]))

        assert [told.metadata for told in seen] == [METADATA | {"replayed": False}]

    def test_other_tenants(self, log: Log, seen: list[TelemetryEvent]) -> None:
        """M1: a view of another tenant tells under its own name."""
        log.for_tenant("other").append(events(1))

        assert [told.metadata["tenant_id"] for told in seen] == ["other"]

    def test_payloads_are_never_told(self, log: Log, seen: list[TelemetryEvent]) -> None:
        """M1: no telemetry event holds a payload."""
        log.append([event(payload={"x": "private-9731"}, tags=("private-9731",))])
        list(log.read())

        assert seen
        assert "private-9731" not in str(seen)

    def test_a_failing_listener_harms_nobody(
        self, log: Log, seen: list[TelemetryEvent], caplog: pytest.LogCaptureFixture
    ) -> None:
        """M1: a listener that fails is logged; the append and the other listeners go on."""

        def fail(_: TelemetryEvent) -> None:
            msg = "a broken listener"
            raise ValueError(msg)

        undo = log.telemetry.subscribe(fail)
        with caplog.at_level(logging.ERROR):
            log.append(events(1))
        undo()
        log.append(events(1))

        assert len(seen) == 2
        assert caplog.text.count("a telemetry listener failed") == 1
