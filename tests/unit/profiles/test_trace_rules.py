"""The ten trace payloads: required, optional and forbidden fields."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.errors import ValidationError
from seriatim.profiles.trace_rules import TRACE_ACTORS, TRACE_TYPES, check_trace_payload

VECTORS = Path(__file__).parents[2] / "vectors" / "deal_desk.json"

FACT = {"key": "amount", "value": {"type": "int", "value": "250000"}}
ENTITY = {"entity_type": "opportunity", "entity_id": "sf:opp:789"}
POLICY = {"policy_id": "discount", "policy_version": "1.0"}
SOUND: dict[str, dict[str, Any]] = {
    "TraceStarted": {"workflow": "approval", "title": "A discount", "primary_entity": ENTITY},
    "InputObserved": {
        "input_id": "input:1",
        "source": {"system": "crm", "object_type": "opportunity", "object_id": "789"},
        "facts": [FACT, {**FACT, "as_of": "2025-12-31T11:55:00Z"}],
    },
    "EntityObserved": {"entity": ENTITY, "role": "related", "facts": [FACT]},
    "PolicyEvaluated": {"policy": POLICY, "inputs": ["input:1"], "decision": "allow"},
    "ExceptionRequested": {"exception_id": "exc:1", "policy": POLICY, "reason": "volume"},
    "ApprovalRecorded": {
        "approval_id": "appr:1",
        "subject": {"subject_type": "exception", "subject_id": "exc:1"},
        "approver": {"actor_type": "person", "actor_id": "lead"},
        "decision": "approved",
    },
    "PrecedentCited": {"cited_trace_id": "t-0", "reason": "a similar case"},
    "ActionProposed": {
        "action_id": "act:1",
        "action_type": "update",
        "target_entity": ENTITY,
        "target_system": "crm",
        "changes": [{"path": "discount", "old_value": None, "new_value": "15"}],
    },
    "ActionCommitted": {"action_id": "act:1", "status": "success"},
    "TraceFinished": {"outcome": "success"},
}
ENUMS = [
    ("EntityObserved", ("role",), ("primary", "related")),
    ("PolicyEvaluated", ("decision",), ("allow", "deny", "require_exception")),
    ("ApprovalRecorded", ("subject", "subject_type"), ("exception", "action")),
    ("ApprovalRecorded", ("approver", "actor_type"), TRACE_ACTORS),
    ("ApprovalRecorded", ("decision",), ("approved", "rejected")),
    ("ActionCommitted", ("status",), ("success", "failure", "partial")),
    ("TraceFinished", ("outcome",), ("success", "failure", "abandoned")),
    (
        "InputObserved",
        ("facts", 0, "value", "type"),
        ("string", "int", "bool", "decimal", "date", "datetime", "json"),
    ),
]


def places(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the way to every value inside another, but not to optional ones and list items."""
    inner: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        inner = [(key, value[key]) for key in value if key != "as_of"]
    elif isinstance(value, list):
        inner = [(index, each) for index, each in enumerate(value) if isinstance(each, dict)]
    found = [place for step, each in inner for place in places(each, (*at, step))]
    return found if not at or isinstance(at[-1], int) else [at, *found]


REQUIRED = [(kind, place) for kind, payload in SOUND.items() for place in places(payload)]


def altered(kind: str, place: tuple[str | int, ...], *value: Any) -> dict[str, Any]:
    """Return a sound payload with one value replaced, or removed when none is given."""
    payload: Any = json.loads(json.dumps(SOUND[kind]))
    inner = payload
    for step in place[:-1]:
        inner = inner[step]
    if value:
        inner[place[-1]] = value[0]
    else:
        del inner[place[-1]]
    return payload  # type: ignore[no-any-return]


def as_location(place: tuple[str | int, ...]) -> str:
    """Return the JSON path of a place."""
    return "$" + "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in place)


def flaw(kind: str, payload: Any) -> ValidationError:
    """Return what the check finds."""
    with pytest.raises(ValidationError) as caught:
        check_trace_payload(kind, payload)
    return caught.value


def test_there_are_ten_types() -> None:
    """T1: the catalogue is frozen, and so is its order."""
    assert tuple(SOUND) == TRACE_TYPES
    assert len(TRACE_TYPES) == 10


@pytest.mark.parametrize("kind", TRACE_TYPES)
def test_sound_payloads_pass(kind: str) -> None:
    """T1: a payload with its required keys passes, and extra keys are allowed at every level."""
    check_trace_payload(kind, SOUND[kind])
    check_trace_payload(kind, {**SOUND[kind], "extra": {"anything": [1, None, ""]}})


def test_extra_keys_are_allowed_inside() -> None:
    """T1: extra keys are allowed in nested objects too, such as an entity's system."""
    check_trace_payload("TraceStarted", altered("TraceStarted", ("primary_entity", "system"), ""))


@pytest.mark.parametrize("event_type", ["", "traceStarted", "TraceStarted ", "SeatReserved"])
def test_other_types_are_refused(event_type: str) -> None:
    """T1: only the ten types exist; the refusal names the field."""
    found = flaw(event_type, {})

    assert (found.part, found.location) == ("shape", "event_type")


@pytest.mark.parametrize(("kind", "place"), REQUIRED)
def test_each_required_key_is_required(kind: str, place: tuple[str | int, ...]) -> None:
    """T1: without one of its keys a payload is refused, with the key's path."""
    found = flaw(kind, altered(kind, place))

    assert (found.part, found.location, found.message) == (
        "shape",
        as_location(place),
        "is required",
    )


@pytest.mark.parametrize("wrong", ["", 7, True, {}, [], [""], {"type": "int"}])
@pytest.mark.parametrize(("kind", "place"), REQUIRED)
def test_each_value_has_its_type(kind: str, place: tuple[str | int, ...], wrong: Any) -> None:
    """T1: strings are non-empty, objects are objects, lists are lists; the path says where."""
    accepted: dict[str | int, Callable[[Any], bool]] = {
        "inputs": lambda value: isinstance(value, list),
        "facts": lambda value: value == [],
        "changes": lambda value: value == [],
        "old_value": lambda value: value != "",
        "new_value": lambda value: value != "",
    }
    if place[-1] in accepted and accepted[place[-1]](wrong):
        return

    assert flaw(kind, altered(kind, place, wrong)).location.startswith(as_location(place))


@pytest.mark.parametrize(("kind", "place"), REQUIRED)
def test_null_is_no_value(kind: str, place: tuple[str | int, ...]) -> None:
    """T1: null stands for nothing but the old value of a change."""
    payload = altered(kind, place, None)

    if place[-1] == "old_value":
        check_trace_payload(kind, payload)
    else:
        assert flaw(kind, payload).location == as_location(place)


@pytest.mark.parametrize(("kind", "place", "allowed"), ENUMS)
def test_enums_are_enforced(
    kind: str, place: tuple[str | int, ...], allowed: tuple[str, ...]
) -> None:
    """T1: each of the listed words passes, another is refused without being quoted."""
    for word in allowed:
        check_trace_payload(kind, altered(kind, place, word))
    found = flaw(kind, altered(kind, place, "hunter2"))

    assert found.location == as_location(place)
    assert "hunter2" not in str(found)
    assert all(word in found.message for word in allowed)


@pytest.mark.parametrize("inputs", [[], [None], [1, "", {"a": []}], ("input:1",)])
def test_inputs_are_a_list_of_anything(inputs: Any) -> None:
    """T1: the inputs of an evaluated policy may be any JSON values."""
    check_trace_payload("PolicyEvaluated", altered("PolicyEvaluated", ("inputs",), inputs))


@pytest.mark.parametrize("as_of", [None, "yesterday"])
def test_as_of_is_optional(as_of: str | None) -> None:
    """T1: a fact may say as of when it holds; null is the same as absent."""
    check_trace_payload("InputObserved", altered("InputObserved", ("facts", 1, "as_of"), as_of))


@pytest.mark.parametrize("as_of", ["", 7, {}])
def test_as_of_is_a_string(as_of: Any) -> None:
    """T1: the optional key has its type where it is given."""
    found = flaw("InputObserved", altered("InputObserved", ("facts", 1, "as_of"), as_of))

    assert found.location == "$.facts[1].as_of"


@pytest.mark.parametrize("value", ["15", 15, False, ["a"], {"type": "decimal", "value": "0.15"}])
def test_changes_hold_any_value(value: Any) -> None:
    """T1: a change's values may be any JSON value; only the old one may be null."""
    change = {"path": "discount", "old_value": value, "new_value": value}

    check_trace_payload("ActionProposed", altered("ActionProposed", ("changes",), [change]))


def test_the_first_fault_in_a_list_is_named() -> None:
    """T1: the path leads to the very item and key."""
    payload = altered("InputObserved", ("facts",), [FACT, FACT, {**FACT, "value": {"type": "int"}}])

    assert flaw("InputObserved", payload).location == "$.facts[2].value.value"


@pytest.mark.parametrize("payload", [None, [], "text", 5])
def test_a_payload_is_an_object(payload: Any) -> None:
    """T1: anything but an object is refused as a whole."""
    assert flaw("TraceFinished", payload).location == "$"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.sampled_from(REQUIRED), JSON)
def test_shape_check_never_crashes(case: tuple[str, tuple[str | int, ...]], value: Any) -> None:
    """T1: for any payload, the check passes or raises its own error."""
    kind, place = case
    found: ValidationError | None = None
    try:
        check_trace_payload(kind, altered(kind, place, value))
    except ValidationError as raised:
        found = raised

    assert found is None or (
        found.part == "shape" and found.location.startswith(as_location(place))
    )


def test_deal_desk_vector_passes() -> None:
    """T3: every payload of the published trace has its shape."""
    for event in json.loads(VECTORS.read_text(encoding="utf-8"))["events"]:
        check_trace_payload(event["event_type"], event["payload"])
