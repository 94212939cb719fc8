"""Seed 000: appends of traces and the order of their checks."""

from hashlib import sha256
from typing import Any

import msgspec
import pytest

import seriatim
from seriatim.profiles.traces import EventEnvelope, StoredEvent, TraceActor, TraceSource
from tests.contract.profiles.trace_factories import PAYLOADS, append_trace, envelope

SECRET = {"workflow": "orders", "title": "Bearer abc", "primary_entity": {}}
LEAKY = {**PAYLOADS["TraceStarted"], "title": "my password=hunter2"}


def refusal(log: seriatim.Log, given: Any) -> seriatim.SeriatimError:
    """Append, check that nothing was stored, and return the error."""
    before = log.head()
    with pytest.raises(seriatim.SeriatimError) as caught:
        log.traces.append_event(given)
    assert log.head() == before
    return caught.value


def test_a_trace_with_all_ten_types(log: seriatim.Log) -> None:
    """A6: events of each type are stored, numbered from 0 by their producer."""
    stored = append_trace(log, *PAYLOADS)

    assert [event.trace_seq for event in stored] == list(range(10))
    assert [event.event_type for event in stored] == list(PAYLOADS)
    assert [event.payload for event in stored] == list(PAYLOADS.values())
    assert log.traces.is_trace_finished("t-1")


def test_stored_events_have_the_fields_of_the_specification(log: seriatim.Log) -> None:
    """A1: a stored event has every field of seed 002 under its name there."""
    given = envelope(
        correlation_id="c-1",
        causation_event_id="z-1",
        tags=["b", "a"],
        request_id="r-1",
        metadata={"traceparent": "00-1"},
    )
    stored = log.traces.append_event(given)

    expected = {
        "log_seq": 1,
        "tenant_id": "default",
        "event_id": "t-1-0",
        "trace_id": "t-1",
        "trace_seq": 0,
        "event_type": "TraceStarted",
        "occurred_at": "2026-03-01T10:00:00+01:00",
        "producer_id": "deal-agent",
        "source_system": "orders",
        "source_subsystem": "rules",
        "actor_type": "agent",
        "actor_id": "agent-7",
        "correlation_id": "c-1",
        "causation_event_id": "z-1",
        "idempotency_key": "t-1/0",
        "schema_version": 1,
        "tags_json": '["b","a"]',
        "request_id": "r-1",
        "metadata": {"traceparent": "00-1"},
    }
    fields = msgspec.structs.asdict(stored)
    assert {name: fields[name] for name in expected} == expected
    assert set(fields) - set(expected) == {"recorded_at", "payload_json", "payload_hash"}
    assert stored.source == TraceSource("orders", "rules", "deal-agent")
    assert stored.actor == TraceActor("agent", "agent-7")
    assert stored.tags == ["b", "a"]


def test_an_envelope_is_a_value_or_a_mapping(log: seriatim.Log) -> None:
    """A1: an envelope and its dictionary form are the same event."""
    given = envelope()
    value = EventEnvelope(
        **{
            **given,
            "source": TraceSource("orders", "rules"),
            "actor": TraceActor("agent", "agent-7"),
        }
    )

    assert log.traces.append_event(value) == log.traces.append_event(given)
    with pytest.raises(AttributeError):
        value.trace_seq = 1  # type: ignore[misc]


def test_the_producer_may_be_part_of_the_source(log: seriatim.Log) -> None:
    """A1: the producer is a field or part of `source`; two different ones are refused."""
    beside = envelope(producer_id="p", source={"system": "orders"})
    within = {name: value for name, value in beside.items() if name != "producer_id"}
    within["source"] = {"system": "orders", "producer_id": "p"}
    stored = log.traces.append_event(within)

    assert stored.producer_id == "p"
    assert log.traces.append_event(beside) == stored
    assert log.traces.append_event({**within, "producer_id": "p"}) == stored
    for wrong, field in (
        ({**within, "producer_id": "q"}, "source.producer_id"),
        ({**within, "source": {"system": "orders"}}, "producer_id"),
        ({**within, "source": {"system": "orders", "producer": "p"}}, "source.producer"),
    ):
        with pytest.raises(seriatim.InvalidArgument) as caught:
            log.traces.append_event(wrong)
        assert caught.value.details["field"] == field


def test_the_hash_depends_on_the_payload_only(log: seriatim.Log) -> None:
    """A2: events with equal payloads have equal hashes, whatever their other fields are."""
    payload = {**PAYLOADS["TraceStarted"], "é": [1, {"b": None, "a": "ü"}]}
    first = log.traces.append_event(envelope(payload=payload))
    other = log.traces.append_event(
        envelope(trace_id="t-2", payload=dict(reversed(payload.items())))
    )

    assert first.payload_json.startswith('{"primary_entity":{"entity_id":"d-1",')
    assert first.payload_hash == "sha256:" + sha256(first.payload_json.encode()).hexdigest()
    assert (first.payload_json, first.payload_hash) == (other.payload_json, other.payload_hash)


def test_times_of_a_stored_event(log: seriatim.Log) -> None:
    """A1: occurred_at is stored unchanged; recorded_at is UTC with microseconds."""
    given = "2026-03-01t10:00:00.123456789-07:30"
    stored = log.traces.append_event(envelope(occurred_at=given))

    assert stored.occurred_at == given
    assert len(stored.recorded_at) == len("2026-03-01T10:00:00.123456Z")
    assert stored.recorded_at.endswith("Z")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"idempotency_key": "", "payload": {"title": 1}}, "invalid_argument"),
        ({"idempotency_key": "k" * 201, "payload": LEAKY}, "invalid_argument"),
        ({"payload": {"title": float("nan")}}, "invalid_argument"),
        ({"payload": {"title": "Bearer \ud800"}}, "invalid_argument"),
        ({"payload": SECRET}, "schema_violation"),
        ({"event_type": "Nonsense", "payload": LEAKY}, "schema_violation"),
        ({"payload": LEAKY, "trace_seq": 7}, "pii_policy_violation"),
        ({"payload": LEAKY, "idempotency_key": "t-1/0"}, "pii_policy_violation"),
    ],
)
def test_first_failing_check_determines_the_error(
    log: seriatim.Log, changes: dict[str, Any], code: str
) -> None:
    """B4: key, JSON safety, shape, guard, reuse and sequence are checked in this order."""
    append_trace(log, "TraceStarted")
    fresh = {"event_id": "new", "idempotency_key": "new"}

    assert refusal(log, envelope(**{**fresh, **changes})).code == code


def test_reuse_is_checked_before_sequence_and_closing(log: seriatim.Log) -> None:
    """B4: another event under a known key conflicts, also in a finished trace."""
    append_trace(log, "TraceStarted", "TraceFinished")
    drifted = envelope("TraceFinished", 9, payload={"outcome": "failure"}, event_id="new")

    assert refusal(log, {**drifted, "idempotency_key": "t-1/1"}).code == "idempotency_conflict"


def test_the_sequence_is_checked_before_closing(log: seriatim.Log) -> None:
    """B7: in a finished trace the next number is a conflict, another one a sequence error."""
    append_trace(log, "TraceStarted", "TraceFinished")

    assert refusal(log, envelope("PrecedentCited", 2)).code == "conflict"
    assert refusal(log, envelope("PrecedentCited", 3)).code == "event_sequence_invalid"


def test_an_exact_retry_after_the_end_returns_the_original(log: seriatim.Log) -> None:
    """B7: events of a finished trace can be repeated, including the last."""
    stored = append_trace(log, "TraceStarted", "PrecedentCited", "TraceFinished")
    again = append_trace(log, "TraceStarted", "PrecedentCited", "TraceFinished")

    assert again == stored
    assert log.head() == 3


@pytest.mark.parametrize("number", [0, 1, 3, 99])
def test_only_the_next_number_is_accepted(log: seriatim.Log, number: int) -> None:
    """B5: an event with another number than the next is refused with both."""
    append_trace(log, "TraceStarted", "PrecedentCited")
    error = refusal(log, envelope("PrecedentCited", number, event_id="n", idempotency_key="n"))

    assert error.code == "event_sequence_invalid"
    assert (error.details["expected"], error.details["actual"]) == (2, number)


@pytest.mark.parametrize(
    ("event_type", "number", "begun"),
    [
        ("PrecedentCited", 0, False),
        ("TraceStarted", 1, False),
        ("TraceStarted", 1, True),
        ("PrecedentCited", 0, True),
    ],
)
def test_a_trace_opens_with_trace_started(
    log: seriatim.Log, event_type: str, number: int, begun: bool
) -> None:
    """B6: TraceStarted must have number 0, and no other type may have it."""
    if begun:
        append_trace(log, "TraceStarted")
    given = envelope(event_type, number, event_id="n", idempotency_key="n")

    assert refusal(log, given).code == "event_sequence_invalid"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("payload", {"payload": {**PAYLOADS["TraceStarted"], "title": "Other"}}),
        ("trace_id", {"trace_id": "t-2"}),
        ("event_type", {"event_type": "PrecedentCited", "payload": PAYLOADS["PrecedentCited"]}),
        ("source", {"source": {"system": "orders"}}),
        ("actor", {"actor": {"actor_type": "agent", "actor_id": "agent-8"}}),
        ("correlation_id", {"correlation_id": "c-2"}),
        ("causation_event_id", {"causation_event_id": "z-2"}),
        ("schema_version", {"schema_version": 2}),
        ("tags", {"tags": ["other"]}),
    ],
)
def test_different_fields_are_an_idempotency_conflict(
    log: seriatim.Log, field: str, changes: dict[str, Any]
) -> None:
    """C2: each differing field is listed under its name in this profile."""
    append_trace(log, "TraceStarted")
    error = refusal(log, {**envelope(), **changes})

    assert error.code == "idempotency_conflict"
    assert field in error.details["fields"]


@pytest.mark.parametrize(
    "changes",
    [
        {"trace_seq": 5},
        {"event_id": "another"},
        {"occurred_at": "2030-01-01T00:00:00Z"},
        {"request_id": "r-9"},
        {"metadata": {"label": "x"}},
    ],
)
def test_differences_in_other_fields_are_ignored(
    log: seriatim.Log, changes: dict[str, Any]
) -> None:
    """C2: sequence number, event id, time, request id and metadata are not compared."""
    (stored,) = append_trace(log, "TraceStarted")

    assert log.traces.append_event({**envelope(), **changes}) == stored
    assert log.head() == 1


def test_keys_are_scoped_by_producer_and_tenant(log: seriatim.Log) -> None:
    """C1: producers and tenants have separate idempotency keys."""
    append_trace(log, "TraceStarted")
    other = envelope(trace_id="t-2", idempotency_key="t-1/0", producer_id="other")
    log.traces.append_event(other)
    log.traces.append_event(envelope(trace_id="t-1"), tenant_id="acme")

    assert log.head() == 3


def test_a_known_event_id_is_compared(log: seriatim.Log) -> None:
    """C3: a known event id under a new key returns the original, or conflicts if it differs."""
    (stored,) = append_trace(log, "TraceStarted")

    assert log.traces.append_event(envelope(idempotency_key="new")) == stored
    drifted = envelope(idempotency_key="new", tags=["x"])
    assert refusal(log, drifted).details["fields"] == ["tags"]


@pytest.mark.parametrize(
    "field",
    [
        "event_id",
        "trace_id",
        "trace_seq",
        "event_type",
        "occurred_at",
        "producer_id",
        "source",
        "actor",
        "idempotency_key",
        "payload",
    ],
)
def test_a_missing_field_is_an_invalid_argument(log: seriatim.Log, field: str) -> None:
    """A7: a missing required field is an invalid argument with its name."""
    given = envelope()
    del given[field]
    error = refusal(log, given)

    assert error.code == "invalid_argument"
    assert error.details["field"].startswith(field)


@pytest.mark.parametrize(
    "changes",
    [
        {"event_id": " spaced"},
        {"trace_id": ""},
        {"trace_id": "x" * 513},
        {"trace_seq": -1},
        {"trace_seq": True},
        {"trace_seq": "0"},
        {"event_type": 7},
        {"occurred_at": "yesterday"},
        {"occurred_at": "2026-02-30T00:00:00Z"},
        {"producer_id": "a\0b"},
        {"source": "orders"},
        {"source": {"system": ""}},
        {"source": {"system": "orders", "planet": "earth"}},
        {"actor": {"actor_type": "user", "actor_id": "u"}},
        {"actor": {"actor_type": "agent"}},
        {"schema_version": 0},
        {"tags": "tag"},
        {"tags": [1]},
        {"log_seq": 1},
        {"recorded_at": "2026-01-01T00:00:00Z"},
        {"colour": "red"},
        {"tenant_id": "another"},
        {"payload": {"x": float("inf")}},
        {"payload": {"x": "\0"}},
        {"payload": {"x": "\udfff"}},
        {"payload": {"x": b"bytes"}},
        {"payload": {1: "x"}},
    ],
)
def test_invalid_envelope_or_json_is_refused(log: seriatim.Log, changes: dict[str, Any]) -> None:
    """L3: an invalid envelope or payload is an invalid argument."""
    assert refusal(log, {**envelope(), **changes}).code == "invalid_argument"


@pytest.mark.parametrize("given", [None, 7, "TraceStarted", [envelope()]])
def test_invalid_envelope_type_is_refused(log: seriatim.Log, given: Any) -> None:
    """L3: an object that is no envelope or mapping is an invalid argument."""
    assert refusal(log, given).code == "invalid_argument"


@pytest.mark.parametrize(
    "changes",
    [
        {"event_type": "Unheard"},
        {"payload": None},
        {"payload": []},
        {"payload": "{}"},
        {"payload": {}},
        {"payload": {**PAYLOADS["TraceStarted"], "title": ""}},
        {"payload": {**PAYLOADS["TraceStarted"], "score": 0.5}},
    ],
)
def test_type_shape_and_floats_are_schema_violations(
    log: seriatim.Log, changes: dict[str, Any]
) -> None:
    """L3: an unknown type, an invalid payload and a float are schema violations."""
    assert refusal(log, {**envelope(), **changes}).code == "schema_violation"


def test_a_float_is_refused_with_its_path(log: seriatim.Log) -> None:
    """A2: a finite float is refused in traces, with its JSON path."""
    payload = {**PAYLOADS["TraceStarted"], "scores": [1, {"x": 0.5}]}

    assert refusal(log, envelope(payload=payload)).details["field"] == "$.scores[1].x"


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"payload": LEAKY}, "$.title"),
        ({"tags": ["fine", "AKIA123"]}, "tags[1]"),
        ({"causation_event_id": "token=abc"}, "causation_event_id"),
        ({"source": {"system": "ghp_x"}}, "source.system"),
        ({"producer_id": "task-42"}, "producer_id"),
        ({"actor": {"actor_type": "agent", "actor_id": "sk-1"}}, "actor.actor_id"),
        ({"idempotency_key": "secret=1"}, "idempotency_key"),
    ],
)
def test_guard_violations_have_a_path(
    log: seriatim.Log, changes: dict[str, Any], path: str
) -> None:
    """K1: traces-v1 scans payload and envelope, and reports the path without the value."""
    error = refusal(log, {**envelope(), **changes})

    assert (error.code, error.details["path"]) == ("pii_policy_violation", path)
    assert error.details["guard"] == "traces-v1"
    assert "hunter2" not in str(error.as_dict())


def test_errors_use_the_names_of_the_profile(log: seriatim.Log) -> None:
    """L3: an error names schema_version, not event_version."""
    error = refusal(log, envelope(schema_version=0))

    assert error.details["field"] == "schema_version"
    assert "schema_version" in error.message
    assert "event_version" not in error.message


def test_a_stored_event_is_frozen(log: seriatim.Log) -> None:
    """A1: a returned event cannot be changed."""
    (stored,) = append_trace(log, "TraceStarted")

    assert isinstance(stored, StoredEvent)
    with pytest.raises(AttributeError):
        stored.log_seq = 7  # type: ignore[misc]
