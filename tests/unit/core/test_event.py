"""New events, records and receipts."""

from typing import Any

import msgspec
import pytest

from seriatim.core.errors import InvalidEvent
from seriatim.core.event import (
    COMMITTED_FIELDS,
    ENVELOPE_TEXTS,
    RECORD_COLUMNS,
    AppendResult,
    EventRecord,
    LogIdentity,
    NewEvent,
)
from seriatim.core.request import PreparedEvent
from seriatim.log.catalogue import EventFields
from seriatim.log.export_format import ExportLine
from seriatim.wire.records import WireEvent, WireRecord

RECORD = EventRecord(
    position=2,
    append_position=1,
    event_id="e",
    tenant_id="default",
    stream_type="s",
    stream_id="1",
    stream_seq=1,
    event_type="x",
    event_version=1,
    occurred_at="2024-01-01T00:00:00Z",
    recorded_at="2024-01-01T00:00:00.000000Z",
    producer_id=None,
    source_system=None,
    source_subsystem=None,
    actor_type=None,
    actor_id=None,
    request_id=None,
    correlation_id=None,
    causation_id=None,
    idempotency_key=None,
    app_id=None,
    env_id=None,
    metadata={"a": "b"},
    payload_json='{"n":[1]}',
    payload_hash="sha256:0",
    tags=("t",),
)


def test_events_from_mappings() -> None:
    """B1: a mapping names its stream as a pair, a list or two fields."""
    for form in (
        {"stream": ("s", "1")},
        {"stream": ["s", "1"]},
        {"stream_type": "s", "stream_id": "1"},
    ):
        made = NewEvent.from_mapping({"event_type": "x", "tags": ["a"], **form})
        assert made == NewEvent("x", stream=("s", "1"), tags=("a",))
    assert NewEvent.from_mapping({"event_type": "x", "stream": None}).stream is None
    both_absent = {"event_type": "x", "stream_type": None, "stream_id": None}
    assert NewEvent.from_mapping(both_absent).stream is None
    half: Any = NewEvent.from_mapping({"event_type": "x", "stream_id": "1"}).stream
    assert half == (None, "1")
    assert NewEvent.from_mapping({"event_type": "x", "tags": ("a",)}).tags == ("a",)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        *(({"event_type": "x", name: 1}, name) for name in sorted(COMMITTED_FIELDS)),
        ({}, "event_type"),
        ({"event_type": "x", "colour": 1}, "colour"),
        ({"event_type": "x", 7: 1}, "7"),
        ({"event_type": "x", "c" * 200: 1}, "c" * 80),
        ({"event_type": "x", "stream": ("a", "b"), "stream_id": "b"}, "stream"),
    ],
)
def test_invalid_fields_of_a_mapping_are_named(given: Any, field: Any) -> None:
    """B2: committed, unknown and missing fields are named."""
    with pytest.raises(InvalidEvent) as caught:
        NewEvent.from_mapping(given)
    assert caught.value.details == {"field": field}


def test_records_are_frozen_values() -> None:
    """A1: a record has its payload as a value and its stream as a pair, and is frozen."""
    assert RECORD.payload == {"n": [1]}
    assert RECORD.payload is not RECORD.payload
    assert RECORD.stream == ("s", "1")
    replace = msgspec.structs.replace
    assert replace(RECORD, stream_type=None, stream_id=None).stream is None
    assert replace(RECORD, stream_id=None).stream is None
    with pytest.raises(AttributeError):
        setattr(RECORD, "position", 1)  # noqa: B010 - the type checker knows better
    shown = RECORD.as_dict()
    assert list(shown) == list(RECORD_COLUMNS)
    assert (shown["payload"], shown["metadata"], shown["tags"]) == ({"n": [1]}, {"a": "b"}, ["t"])


def test_receipts_make_their_records_once() -> Any:
    """B1: a receipt has its range and replay flag, and makes its records once, when needed."""
    made = []

    def make() -> Any:
        made.append(1)
        return (RECORD,)

    result = AppendResult(2, 4, make, response="r")
    assert (result.count, result.replayed, result.response) == (3, False, "r")
    assert made == []
    assert result.records is result.records
    assert made == [1]
    assert repr(result) == "AppendResult(first_position=2, last_position=4, replayed=False)"


def test_receipt_of_a_replay() -> None:
    """C2: the receipt of a replay has the records and response of the first append."""
    later = msgspec.structs.replace(RECORD, position=3)
    result = AppendResult.replay((RECORD, later), {"ok": 1}, ("tags",))

    assert (result.first_position, result.last_position, result.count) == (2, 3, 2)
    assert result.replayed
    assert (result.records, result.response) == ((RECORD, later), {"ok": 1})
    assert result.id_mismatch == ("tags",)


def test_identities_are_values() -> None:
    """F8: identities are equal if log id and epoch are."""
    assert LogIdentity("a", 1) == LogIdentity("a", 1) != LogIdentity("a", 2)


def test_the_forms_of_an_event_have_the_same_envelope() -> None:
    """A1: every form of an event has every field of the envelope.

    The forms are written out where a positional constructor is measurably faster than a loop.
    """
    new = [name for name in NewEvent.__struct_fields__ if name != "stream"]
    streams = ["stream_type", "stream_id"]

    assert WireRecord.__struct_fields__ == RECORD_COLUMNS
    assert set(ExportLine.__struct_fields__) == set(RECORD_COLUMNS)
    assert {*new, *streams} == set(RECORD_COLUMNS) - COMMITTED_FIELDS
    assert set(WireEvent.__struct_fields__) == {*new, *streams, "stream"}
    assert [name for name in WireEvent.__struct_fields__ if name in new] == new
    assert set(EventFields.__annotations__) == {*new, "stream"} - {
        *("event_type", "event_version", "payload")
    }
    for form in (NewEvent, EventRecord, PreparedEvent, ExportLine, WireEvent, WireRecord):
        names = form.__struct_fields__
        assert tuple(name for name in names if name in ENVELOPE_TEXTS) == ENVELOPE_TEXTS
