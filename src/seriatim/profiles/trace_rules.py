"""The rules of traces: their stream kind, the shapes of their payloads (T1) and their guard (T2).

They are registered with the core when this module is imported, and then hold for every append to
a trace, through any profile.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from seriatim.core.decision_graph import TRACE_STREAM_TYPE
from seriatim.core.errors import InvalidArgument, SchemaViolation, ValidationError
from seriatim.core.guard import PatternGuard, register_guard
from seriatim.core.guard_rules import Rule
from seriatim.core.guard_scanner import Literal
from seriatim.core.json_path import ROOT, child, item
from seriatim.core.kinds import ProfileKind, StreamKind, register_kind
from seriatim.core.profile_rules import ProfileRules, register_profile

TRACES_PROFILE = register_profile(
    ProfileRules(
        name="traces",
        error_types={
            "envelope": InvalidArgument,
            "json": InvalidArgument,
            "payload": SchemaViolation,
            "shape": SchemaViolation,
        },
    )
)

TRACE_ACTORS = ("agent", "person", "role", "system")

# The result of a check: None, or the path below the value and the problem there. Paths are built
# only while a failure is returned, so that a valid payload does not pay for them.
_Problem = tuple[str, str] | None
_Check = Callable[[Any], _Problem]
_ARRAYS = (list, tuple)


def _text(value: Any) -> _Problem:
    return None if isinstance(value, str) and value else ("", "must be a non-empty string")


def _text_or_null(value: Any) -> _Problem:
    return None if value is None else _text(value)


def _any_or_null(value: Any) -> _Problem:
    return _text(value) if isinstance(value, str) else None


def _any(value: Any) -> _Problem:
    return ("", "must not be null") if value is None else _any_or_null(value)


def _one_of(*allowed: str) -> _Check:
    problem = ("", f"must be one of {', '.join(allowed)}")
    return lambda value: None if value in allowed else problem


def _object(*, optional: dict[str, _Check] | None = None, **required: _Check) -> _Check:
    required_fields, optional_fields = tuple(required.items()), tuple((optional or {}).items())

    def check(value: Any) -> _Problem:
        if not isinstance(value, dict):
            return "", "must be an object"
        for key, check_value in required_fields:
            if key not in value:
                return child("", key), "is required"
            if problem := check_value(value[key]):
                return child("", key) + problem[0], problem[1]
        for key, check_value in optional_fields:
            if problem := check_value(value.get(key)):
                return child("", key) + problem[0], problem[1]
        return None

    return check


def _list_of(check_element: _Check) -> _Check:
    def check(value: Any) -> _Problem:
        if not isinstance(value, _ARRAYS):
            return "", "must be a list"
        for index, element in enumerate(value):
            if problem := check_element(element):
                return item("", index) + problem[0], problem[1]
        return None

    return check


_ENTITY = _object(entity_type=_text, entity_id=_text)
_POLICY = _object(policy_id=_text, policy_version=_text)
_VALUE = _object(
    type=_one_of("string", "int", "bool", "decimal", "date", "datetime", "json"),
    value=_text,
)
_FACTS = _list_of(_object(key=_text, value=_VALUE, optional={"as_of": _text_or_null}))
_CHANGES = _list_of(_object(path=_text, old_value=_any_or_null, new_value=_any))
_ANY_LIST = _list_of(lambda _: None)

_SHAPES: dict[str, _Check] = {
    "TraceStarted": _object(workflow=_text, title=_text, primary_entity=_ENTITY),
    "InputObserved": _object(
        input_id=_text,
        source=_object(system=_text, object_type=_text, object_id=_text),
        facts=_FACTS,
    ),
    "EntityObserved": _object(entity=_ENTITY, role=_one_of("primary", "related"), facts=_FACTS),
    "PolicyEvaluated": _object(
        policy=_POLICY,
        inputs=_ANY_LIST,
        decision=_one_of("allow", "deny", "require_exception"),
    ),
    "ExceptionRequested": _object(exception_id=_text, policy=_POLICY, reason=_text),
    "ApprovalRecorded": _object(
        approval_id=_text,
        subject=_object(subject_type=_one_of("exception", "action"), subject_id=_text),
        approver=_object(actor_type=_one_of(*TRACE_ACTORS), actor_id=_text),
        decision=_one_of("approved", "rejected"),
    ),
    "PrecedentCited": _object(cited_trace_id=_text, reason=_text),
    "ActionProposed": _object(
        action_id=_text,
        action_type=_text,
        target_entity=_ENTITY,
        target_system=_text,
        changes=_CHANGES,
    ),
    "ActionCommitted": _object(action_id=_text, status=_one_of("success", "failure", "partial")),
    "TraceFinished": _object(outcome=_one_of("success", "failure", "abandoned")),
}

TRACE_TYPES: tuple[str, ...] = tuple(_SHAPES)


def check_trace_payload(event_type: str, payload: dict[str, Any]) -> None:
    """Raise `ValidationError` for an unknown trace event type or a payload of another shape."""
    shape = _SHAPES.get(event_type)
    if shape is None:
        raise ValidationError("shape", "event_type", f"must be one of {', '.join(TRACE_TYPES)}")
    if problem := shape(payload):
        raise ValidationError("shape", ROOT + problem[0], problem[1])


# Contract rule T2, verbatim and frozen.
TRACE_SUBSTRINGS = (
    *("Bearer ", "xoxb-", "xoxp-", "xoxa-", "xoxr-", "sk-"),
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "-----BEGIN", "AKIA", "ASIA"),
    *("api_key=", "apikey=", "api-key:", "password=", "passwd=", "secret=", "token="),
)
TRACE_RULES: tuple[Rule, ...] = tuple(
    Rule(
        each,
        re.compile(re.escape(each.lower())),
        (Literal(each.lower()),),
        lowercase=True,
        description=each,
    )
    for each in TRACE_SUBSTRINGS
)
TRACES_GUARD = PatternGuard("traces-v1", TRACE_RULES, keys=False, metadata=False)

TRACE_STREAM_KIND = StreamKind(
    name=TRACE_STREAM_TYPE,
    first_seq=0,
    numbered_by="caller",
    opening_type="TraceStarted",
    closing_types=("TraceFinished",),
    catalogue="closed",
)

register_guard(TRACES_GUARD)
register_kind(
    ProfileKind(
        kind=TRACE_STREAM_KIND,
        profile=TRACES_PROFILE.name,
        event_types=TRACE_TYPES,
        required=(
            "event_id",
            "stream_seq",
            "occurred_at",
            "producer_id",
            "source_system",
            "actor_type",
            "actor_id",
        ),
        key_required=True,
        actor_types=TRACE_ACTORS,
        floats=False,
        check_payload=check_trace_payload,
        guard=TRACES_GUARD,
        guarded_fields=(
            "producer_id",
            "actor_type",
            "actor_id",
            "source_system",
            "source_subsystem",
            "correlation_id",
            "causation_id",
        ),
    )
)
