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
    """Return the paths to every value, except optional ones and list items."""
    inner: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        inner = [(key, value[key]) for key in value if key != "as_of"]
    elif isinstance(value, list):
        inner = [(index, each) for index, each in enumerate(value) if isinstance(each, dict)]
    found = [place for step, each in inner for place in places(each, (*at, step))]
    return found if not at or isinstance(at[-1], int) else [at, *found]


REQUIRED = [(kind, place) for kind, payload in SOUND.items() for place in places(payload)]


def altered(kind: str, place: tuple[str | int, ...], *value: Any) -> dict[str, Any]:
    """Return a valid payload with one value replaced, or removed if none is given."""
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


def shape_error(kind: str, payload: Any) -> ValidationError:
    """Return the error of a payload."""
    with pytest.raises(ValidationError) as caught:
        check_trace_payload(kind, payload)
    return caught.value


def test_the_catalogue_has_ten_types() -> None:
    """T1: the catalogue has ten types in a fixed order."""
    assert tuple(SOUND) == TRACE_TYPES
    assert len(TRACE_TYPES) == 10


@pytest.mark.parametrize("kind", TRACE_TYPES)
def test_valid_payloads_pass(kind: str) -> None:
    """T1: payloads with their required keys pass, also with extra keys."""
    check_trace_payload(kind, SOUND[kind])
    check_trace_payload(kind, {**SOUND[kind], "extra": {"anything": [1, None, ""]}})


def test_extra_keys_are_allowed_in_nested_objects() -> None:
    """T1: extra keys are allowed in nested objects, such as an entity's system."""
    check_trace_payload("TraceStarted", altered("TraceStarted", ("primary_entity", "system"), ""))


@pytest.mark.parametrize("event_type", ["", "traceStarted", "TraceStarted ", "SeatReserved"])
def test_other_types_are_refused(event_type: str) -> None:
    """T1: an event type outside the catalogue is refused, and the field is named."""
    found = shape_error(event_type, {})

    assert (found.part, found.location) == ("shape", "event_type")


@pytest.mark.parametrize(("kind", "place"), REQUIRED)
def test_missing_keys_are_refused(kind: str, place: tuple[str | int, ...]) -> None:
    """T1: a payload without a required key is refused with the path of the key."""
    found = shape_error(kind, altered(kind, place))

    assert (found.part, found.location, found.message) == (
        "shape",
        as_location(place),
        "is required",
    )


@pytest.mark.parametrize("wrong", ["", 7, True, {}, [], [""], {"type": "int"}])
@pytest.mark.parametrize(("kind", "place"), REQUIRED)
def test_values_of_other_types_are_refused(
    kind: str, place: tuple[str | int, ...], wrong: Any
) -> None:
    """T1: a value of another type, or an empty string, is refused with its path."""
    accepted: dict[str | int, Callable[[Any], bool]] = {
        "inputs": lambda value: isinstance(value, list),
        "facts": lambda value: value == [],
        "changes": lambda value: value == [],
        "old_value": lambda value: value != "",
        "new_value": lambda value: value != "",
    }
    if place[-1] in accepted and accepted[place[-1]](wrong):
        return

    assert shape_error(kind, altered(kind, place, wrong)).location.startswith(as_location(place))


@pytest.mark.parametrize(("kind", "place"), REQUIRED)
def test_null_is_refused(kind: str, place: tuple[str | int, ...]) -> None:
    """T1: null is allowed only as the old value of a change."""
    payload = altered(kind, place, None)

    if place[-1] == "old_value":
        check_trace_payload(kind, payload)
    else:
        assert shape_error(kind, payload).location == as_location(place)


@pytest.mark.parametrize(("kind", "place", "allowed"), ENUMS)
def test_enums_are_enforced(
    kind: str, place: tuple[str | int, ...], allowed: tuple[str, ...]
) -> None:
    """T1: listed values of an enum pass; another one is refused and not repeated."""
    for word in allowed:
        check_trace_payload(kind, altered(kind, place, word))
    found = shape_error(kind, altered(kind, place, "hunter2"))

    assert found.location == as_location(place)
    assert "hunter2" not in str(found)
    assert all(word in found.message for word in allowed)


@pytest.mark.parametrize("inputs", [[], [None], [1, "", {"a": []}], ("input:1",)])
def test_inputs_may_have_any_values(inputs: Any) -> None:
    """T1: the inputs of an evaluated policy may be any JSON values."""
    check_trace_payload("PolicyEvaluated", altered("PolicyEvaluated", ("inputs",), inputs))


@pytest.mark.parametrize("as_of", [None, "yesterday"])
def test_as_of_is_optional(as_of: str | None) -> None:
    """T1: the as_of of a fact may be absent, null or a string."""
    check_trace_payload("InputObserved", altered("InputObserved", ("facts", 1, "as_of"), as_of))


@pytest.mark.parametrize("as_of", ["", 7, {}])
def test_as_of_is_a_string(as_of: Any) -> None:
    """T1: an as_of that is no string, or empty, is refused."""
    found = shape_error("InputObserved", altered("InputObserved", ("facts", 1, "as_of"), as_of))

    assert found.location == "$.facts[1].as_of"


@pytest.mark.parametrize("value", ["15", 15, False, ["a"], {"type": "decimal", "value": "0.15"}])
def test_changes_may_have_any_values(value: Any) -> None:
    """T1: the values of a change may be any JSON value."""
    change = {"path": "discount", "old_value": value, "new_value": value}

    check_trace_payload("ActionProposed", altered("ActionProposed", ("changes",), [change]))


def test_errors_in_lists_have_a_path() -> None:
    """T1: the path of an error names the list item and the key."""
    payload = altered("InputObserved", ("facts",), [FACT, FACT, {**FACT, "value": {"type": "int"}}])

    assert shape_error("InputObserved", payload).location == "$.facts[2].value.value"


@pytest.mark.parametrize("payload", [None, [], "text", 5])
def test_a_payload_must_be_an_object(payload: Any) -> None:
    """T1: a payload that is no object is refused."""
    assert shape_error("TraceFinished", payload).location == "$"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.sampled_from(REQUIRED), JSON)
def test_validation_raises_only_its_own_error(
    case: tuple[str, tuple[str | int, ...]], value: Any
) -> None:
    """T1: any payload passes or raises a ValidationError at the changed place."""
    kind, place = case
    found: ValidationError | None = None
    try:
        check_trace_payload(kind, altered(kind, place, value))
    except ValidationError as raised:
        found = raised

    assert found is None or (
        found.part == "shape" and found.location.startswith(as_location(place))
    )


def test_the_example_trace_passes() -> None:
    """T3: every payload of the example trace is valid."""
    for event in json.loads(VECTORS.read_text(encoding="utf-8"))["events"]:
        check_trace_payload(event["event_type"], event["payload"])
