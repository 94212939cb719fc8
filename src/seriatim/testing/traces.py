"""Section T: the ten frozen trace types, their payloads and their envelope."""

from __future__ import annotations

import copy
from typing import Any

from seriatim.core.event import NewEvent
from seriatim.factory import Log
from seriatim.profiles.trace_rules import TRACES_PROFILE
from seriatim.testing.factories import (
    TRACE_PAYLOADS,
    assert_all_refused,
    assert_refused,
    stream_seqs,
    trace,
    trace_event,
)

PayloadPath = tuple[str | int, ...]

_trace_event: Any = trace_event  # for values that its types forbid

# Every required key of every type, by its path in the sample payloads.
REQUIRED: dict[str, list[PayloadPath]] = {
    "TraceStarted": [
        ("workflow",),
        ("title",),
        ("primary_entity",),
        ("primary_entity", "entity_type"),
        ("primary_entity", "entity_id"),
    ],
    "InputObserved": [
        ("input_id",),
        ("source",),
        ("source", "system"),
        ("source", "object_type"),
        ("source", "object_id"),
        ("facts",),
        ("facts", 0, "key"),
        ("facts", 0, "value"),
        ("facts", 0, "value", "type"),
        ("facts", 0, "value", "value"),
    ],
    "EntityObserved": [
        ("entity",),
        ("entity", "entity_type"),
        ("entity", "entity_id"),
        ("role",),
        ("facts",),
    ],
    "PolicyEvaluated": [
        ("policy",),
        ("policy", "policy_id"),
        ("policy", "policy_version"),
        ("inputs",),
        ("decision",),
    ],
    "ExceptionRequested": [
        ("exception_id",),
        ("policy",),
        ("policy", "policy_id"),
        ("policy", "policy_version"),
        ("reason",),
    ],
    "ApprovalRecorded": [
        ("approval_id",),
        ("subject",),
        ("subject", "subject_type"),
        ("subject", "subject_id"),
        ("approver",),
        ("approver", "actor_type"),
        ("approver", "actor_id"),
        ("decision",),
    ],
    "PrecedentCited": [("cited_trace_id",), ("reason",)],
    "ActionProposed": [
        ("action_id",),
        ("action_type",),
        ("target_entity",),
        ("target_entity", "entity_type"),
        ("target_entity", "entity_id"),
        ("target_system",),
        ("changes",),
        ("changes", 0, "path"),
        ("changes", 0, "old_value"),
        ("changes", 0, "new_value"),
    ],
    "ActionCommitted": [("action_id",), ("status",)],
    "TraceFinished": [("outcome",)],
}

ENUMS: dict[tuple[str, PayloadPath], list[str]] = {
    ("EntityObserved", ("role",)): ["primary", "related"],
    ("PolicyEvaluated", ("decision",)): ["allow", "deny", "require_exception"],
    ("ApprovalRecorded", ("decision",)): ["approved", "rejected"],
    ("ApprovalRecorded", ("subject", "subject_type")): ["exception", "action"],
    ("ApprovalRecorded", ("approver", "actor_type")): ["agent", "person", "role", "system"],
    ("ActionCommitted", ("status",)): ["success", "failure", "partial"],
    ("TraceFinished", ("outcome",)): ["success", "failure", "abandoned"],
    ("InputObserved", ("facts", 0, "value", "type")): [
        *("string", "int", "bool", "decimal", "date", "datetime", "json"),
    ],
}


def change_payload(
    event_type: str, path: PayloadPath, value: Any = None, *, without: bool = False
) -> Any:
    """Return the sample payload of a type with one value replaced or removed."""
    payload = copy.deepcopy(dict(TRACE_PAYLOADS[event_type]))
    inner: Any = payload
    for step in path[:-1]:
        inner = inner[step]
    if without:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return payload


def format_json_path(path: PayloadPath) -> str:
    """Return a path into a payload in JSON path syntax."""
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


class TraceContract:
    """A5 to A7, L3, T1: the trace kind, through the log and through the traces profile."""

    def test_complete_trace_is_accepted(self, log: Log) -> None:
        """A6, T1: a trace with one event of each type is accepted, numbered from 0."""
        log.append(trace("t"))

        records = list(log.read_stream(("trace", "t")))
        assert [record.event_type for record in records] == list(TRACE_PAYLOADS)
        assert stream_seqs(log, ("trace", "t")) == list(range(10))
        assert [record.payload for record in records] == [
            dict(payload) for payload in TRACE_PAYLOADS.values()
        ]

    def test_missing_required_key_is_refused(self, log: Log) -> None:
        """T1: a payload without a required key is refused with its JSON path."""
        cases = {
            f"{event_type} without {format_json_path(path)}": (
                trace_event(
                    event_type, "t", 0, payload=change_payload(event_type, path, without=True)
                ),
                "schema_violation",
                format_json_path(path),
            )
            for event_type, paths in REQUIRED.items()
            for path in paths
        }
        assert_all_refused(log, lambda candidate: log.append([candidate]), cases)

    def test_value_of_a_wrong_type_is_refused(self, log: Log) -> None:
        """T1: a number where a string, object or list belongs is refused with its JSON path."""
        cases = {
            f"{event_type} with 7 at {format_json_path(path)}": (
                trace_event(event_type, "t", 0, payload=change_payload(event_type, path, 7)),
                "schema_violation",
                format_json_path(path),
            )
            for event_type, paths in REQUIRED.items()
            for path in paths
            if path[-1] not in ("old_value", "new_value")
        }
        assert_all_refused(log, lambda candidate: log.append([candidate]), cases)

    def test_enumerated_strings_are_enforced(self, log: Log) -> None:
        """T1: enumerated strings are enforced; every allowed value is accepted."""
        cases: dict[str, tuple[Any, ...]] = {}
        started = trace_event("TraceStarted", "t", 0)
        number = 0
        for (event_type, path), allowed in ENUMS.items():
            for wrong in ("", "other", allowed[0].upper(), None):
                payload = change_payload(event_type, path, wrong)
                candidate = trace_event(event_type, "t", 0, payload=payload)
                cases[f"{event_type} {format_json_path(path)} {wrong!r}"] = (
                    candidate,
                    "schema_violation",
                    format_json_path(path),
                )
            for right in allowed:
                trace_id = f"ok-{number}"
                number += 1
                log.append(
                    [
                        trace_event("TraceStarted", trace_id, 0),
                        trace_event(
                            event_type, trace_id, 1, payload=change_payload(event_type, path, right)
                        ),
                    ]
                )
        assert_all_refused(log, lambda candidate: log.append([candidate]), cases)
        log.append([started])

    def test_extra_keys_are_allowed(self, log: Log) -> None:
        """T1: additional keys are stored, at every level."""
        payload = change_payload("TraceStarted", ("primary_entity", "system"), "crm") | {
            "more": [1]
        }

        log.append([trace_event("TraceStarted", "t", 0, payload=payload)])

        assert [record.payload for record in log.read()] == [payload]

    def test_optional_keys_may_be_omitted_or_null(self, log: Log) -> None:
        """T1: as_of is optional, and an old value may be null."""
        fact = {"key": "k", "value": {"type": "json", "value": "{}"}, "as_of": "2024-01-01"}
        change = {"path": "p", "old_value": "a", "new_value": "b"}
        log.append(
            [
                trace_event("TraceStarted", "t", 0),
                trace_event(
                    "InputObserved",
                    "t",
                    1,
                    payload=change_payload("InputObserved", ("facts",), [fact]),
                ),
                trace_event(
                    "ActionProposed",
                    "t",
                    2,
                    payload=change_payload("ActionProposed", ("changes",), [change]),
                ),
            ]
        )

        with assert_refused(log, "schema_violation", field="$.facts[0].as_of"):
            payload = change_payload("InputObserved", ("facts",), [fact | {"as_of": 7}])
            log.append([trace_event("InputObserved", "t", 3, payload=payload)])

    def test_the_catalogue_is_closed(self, log: Log) -> None:
        """A5: an event type other than the ten is refused."""
        for name in ("TraceResumed", "tracestarted", "thing.happened"):
            with assert_refused(log, "schema_violation", index=0, field="event_type"):
                log.append([trace_event(name, "t", 0)])

    def test_floats_are_refused(self, log: Log) -> None:
        """A2: a finite float anywhere in a trace's payload is refused with its JSON path."""
        payload = change_payload("TraceStarted", ("score",), [1, {"x": 1.5}])
        with assert_refused(log, "schema_violation", index=0, field="$.score[1].x"):
            log.append([trace_event("TraceStarted", "t", 0, payload=payload)])

        payload = change_payload("TraceStarted", ("score",), [1, 10**30, "1.5"])
        log.append([trace_event("TraceStarted", "t", 0, payload=payload)])

    def test_envelope_fields_are_required(self, log: Log) -> None:
        """A7: a trace's event carries id, number, time, producer, source, actor and key."""
        for profile_code, operation in (
            ("invalid_event", lambda candidate: log.append([candidate])),
            (
                "invalid_argument",
                lambda candidate: log.append_draft(log.draft(TRACES_PROFILE, [candidate])),
            ),
        ):
            cases: dict[str, tuple[Any, ...]] = {}
            for field in (
                "event_id",
                "stream_seq",
                "occurred_at",
                "producer_id",
                "source_system",
                "actor_type",
                "actor_id",
                "idempotency_key",
            ):
                missing = _trace_event("TraceStarted", "t", 0, **{field: None})
                cases[f"no {field}"] = (missing, profile_code, field)
            for field, wrong in (
                ("occurred_at", "yesterday"),
                ("actor_type", "user"),
                ("producer_id", ""),
                ("event_id", " x"),
                ("idempotency_key", ""),
                ("stream_seq", -1),
                ("event_version", 0),
            ):
                candidate = _trace_event("TraceStarted", "t", 0, **{field: wrong})
                cases[f"{field} {wrong!r}"] = (candidate, profile_code, field)
            assert_all_refused(log, operation, cases)

    def test_actor_type_is_enumerated(self, log: Log) -> None:
        """T1: an actor is an agent, a person, a role or a system."""
        for actor in ("agent", "person", "role", "system"):
            log.append([trace_event("TraceStarted", actor, 0, actor_type=actor)])

        with assert_refused(log, "invalid_event", index=0, field="actor_type"):
            log.append([trace_event("TraceStarted", "t", 0, actor_type="service_principal")])

    def test_error_codes_of_the_traces_profile(self, log: Log) -> None:
        """L3: invalid JSON is an invalid argument, a wrong shape a schema violation."""
        start = "TraceStarted"
        bad, violation = "invalid_argument", "schema_violation"
        assert_all_refused(
            log,
            lambda candidate: log.append_draft(log.draft(TRACES_PROFILE, [candidate])),
            {
                "NaN": (_with(float("nan")), bad, "$.x"),
                "infinity": (_with(float("inf")), bad, "$.x"),
                "NUL": (_with("a\0"), bad, "$.x"),
                "surrogate": (_with("\ud800"), bad, "$.x"),
                "bytes": (_with(b"a"), bad, "$.x"),
                "float": (_with(1.5), violation, "$.x"),
                "float before NaN": (_with([1.5, float("nan")]), bad, "$.x[1]"),
                "unknown type": (trace_event("Other", "t", 0), violation, "event_type"),
                "list": (trace_event(start, "t", 0, payload=[]), violation, "payload"),
                "list with NaN": (trace_event(start, "t", 0, payload=[float("nan")]), bad, "$[0]"),
                "text": (trace_event(start, "t", 0, payload="x"), violation, "payload"),
                "nothing": (trace_event(start, "t", 0, payload=None), violation, "payload"),
                "no title": (
                    trace_event(start, "t", 0, payload={"workflow": "w"}),
                    violation,
                    "$.title",
                ),
                "tags": (_trace_event(start, "t", 0, tags="x"), bad, "tags"),
            },
        )

    def test_payload_must_be_an_object(self, log: Log) -> None:
        """A3: outside the facts profile a payload must be a JSON object."""
        payloads: list[Any] = [[], "x", 1, None, True]
        for payload in payloads:
            started = trace_event("TraceStarted", "t", 0, payload=payload)
            with assert_refused(log, "schema_violation", index=0, field="payload"):
                log.append_draft(log.draft(TRACES_PROFILE, [started]))
            with assert_refused(log, "invalid_event", index=0, field="payload"):
                log.append([NewEvent("x", payload)])


def _with(value: Any) -> NewEvent:
    return trace_event(
        "TraceStarted", "t", 0, payload=change_payload("TraceStarted", ("x",), value)
    )
