"""The telemetry bus: listeners, their removal, and the content of events."""

import logging

import pytest

from seriatim.core.event import NewEvent
from seriatim.core.prepare import ValidationContext, prepare
from seriatim.core.request import AppendRequest
from seriatim.telemetry.event_bus import (
    Telemetry,
    TelemetryEvent,
    make_append_metadata,
    make_reuse_metadata,
)


def test_listeners_receive_events() -> None:
    """M1: each listener receives each event, in the order of subscription, until it is removed."""
    bus = Telemetry()
    reported: list[tuple[str, TelemetryEvent]] = []
    activity = [bus.active]
    undo = bus.subscribe(lambda event: reported.append(("a", event)))
    bus.subscribe(lambda event: reported.append(("b", event)))
    activity.append(bus.active)

    bus.emit("store.append.stop", {"count": 1}, {"tenant_id": "t"})
    undo()
    undo()
    bus.emit("store.read_batch.stop", {"count": 2}, {})

    assert activity == [False, True]
    assert [name for name, _ in reported] == ["a", "b", "b"]
    assert reported[0][1] == TelemetryEvent("store.append.stop", {"count": 1}, {"tenant_id": "t"})


def test_a_failing_listener(caplog: pytest.LogCaptureFixture) -> None:
    """M1: an error of a listener is logged, and the next listener receives the event."""
    bus = Telemetry()
    reported: list[TelemetryEvent] = []

    def fail(_: TelemetryEvent) -> None:
        raise RuntimeError

    bus.subscribe(fail)
    bus.subscribe(reported.append)
    with caplog.at_level(logging.ERROR, "seriatim"):
        bus.emit("store.append.exception", {}, {})

    assert len(reported) == 1
    assert "store.append.exception" in caplog.text


def test_metadata_of_appends() -> None:
    """M1: the metadata of an append are those of its first event, without absent fields."""
    context = ValidationContext(tenant_id="t", new_id=lambda: "e")
    event = NewEvent("x", {"private": 1}, stream=("s", "1"), producer_id="p", request_id="r")
    events, _ = prepare(context, [event])
    whole = {
        "tenant_id": "t",
        "stream_type": "s",
        "stream_id": "1",
        "event_type": "x",
        "producer_id": "p",
        "request_id": "r",
    }

    reported = make_append_metadata(AppendRequest("t", events), "t", error_code="conflict")
    assert reported == whole | {"error_code": "conflict"}
    assert make_append_metadata(None, "t", error_code="c") == {"tenant_id": "t", "error_code": "c"}
    assert make_reuse_metadata(events[0].to_record(1, 1, 1, 0)) == whole
    (fact,), _ = prepare(context, [NewEvent("x")])
    assert make_reuse_metadata(fact.to_record(1, 1, None, 0)) == {
        "tenant_id": "t",
        "event_type": "x",
    }
