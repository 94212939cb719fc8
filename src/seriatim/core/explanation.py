"""The explanation of an append: the checks it would pass, and the first that decides it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from seriatim.core.decide import AcceptedAppend, DecisionStep, DecisionTrace, ReplayedAppend
from seriatim.core.errors import LimitExceeded, SeriatimError, ValidationError
from seriatim.core.event import EventRecord

ValidationStep = Literal["arguments", "envelope", "json", "schema", "limits", "guard"]
StepName = ValidationStep | DecisionStep
StepResult = Literal["passed", "replayed", "refused", "skipped"]

VALIDATION_STEPS: tuple[ValidationStep, ...] = (
    "arguments",
    "envelope",
    "json",
    "schema",
    "limits",
    "guard",
)
DECISION_STEPS: tuple[DecisionStep, ...] = ("command", "idempotency", "conditions", "sequence")

_STEP_OF_PART: dict[str, ValidationStep] = {
    "envelope": "envelope",
    "json": "json",
    "payload": "json",
    "shape": "schema",
}
_STEP_OF_CODE: dict[str, ValidationStep] = {
    "invalid_event": "envelope",
    "schema_violation": "schema",
    "pii_policy_violation": "guard",
}
_STEP_OF_LIMIT: dict[str, ValidationStep] = {
    "append_events": "arguments",
    "conditions": "arguments",
    "condition_filters": "arguments",
    "filters": "arguments",
    "predicates": "arguments",
    "predicate_values": "arguments",
    "payload_depth": "json",
    "integer_digits": "json",
    "tags": "envelope",
    "tag_bytes": "envelope",
    "metadata_entries": "envelope",
    "metadata_bytes": "envelope",
}


class ExplainedStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """One check of an append.

    Attributes:
        step: The name of the check.
        result: Whether the append passed it, was found to be a replay, was refused, or was decided
            by an earlier check.
        index: The number of the condition, from 0; None for other checks.
    """

    step: StepName
    result: StepResult
    index: int | None = None


class Explanation(msgspec.Struct, frozen=True):
    """What an append would do now, without doing it.

    Attributes:
        outcome: Whether the append would be stored, replayed or refused.
        steps: All checks, in the order in which the append runs them.
        error: The error of a refused append.
        first_position: The position of the first event: the stored one of a replay, or the next
            of the log if the append would be stored.
        stream_seqs: The sequence number of each event that would be stored, None for facts.
        response: The stored response of a replayed command.
        id_mismatch: The fields in which a tolerated duplicate event id differs.
        events: The stored events that decided: those of a replay, or those that conflict; the
            first few.
    """

    outcome: Literal["accepted", "replayed", "refused"]
    steps: tuple[ExplainedStep, ...]
    error: SeriatimError | None = None
    first_position: int | None = None
    stream_seqs: tuple[int | None, ...] = ()
    response: Any = None
    id_mismatch: tuple[str, ...] = ()
    events: tuple[EventRecord, ...] = ()


def explain_refusal(error: SeriatimError) -> Explanation:
    """Explain an append that fails its validation, before the log is read."""
    failed = _find_validation_step(error)
    return Explanation("refused", tuple(_list_validation_steps(failed, "refused")), error)


def explain_decision(trace: DecisionTrace, events: Sequence[EventRecord]) -> Explanation:
    """Explain a validated append by the trace of its decision.

    Args:
        trace: The steps that were entered, and the result.
        events: The stored events that decided.
    """
    result = trace.result
    if isinstance(result, AcceptedAppend):
        steps = tuple(_list_decision_steps(trace, "passed"))
        return Explanation(
            "accepted", steps, first_position=trace.head + 1, stream_seqs=result.stream_seqs
        )
    if isinstance(result, ReplayedAppend):
        return Explanation(
            "replayed",
            tuple(_list_decision_steps(trace, "replayed")),
            first_position=result.records[0].position,
            response=result.response,
            id_mismatch=result.id_mismatch,
            events=tuple(events),
        )
    return Explanation(
        "refused", tuple(_list_decision_steps(trace, "refused")), result, events=tuple(events)
    )


def _find_validation_step(error: SeriatimError) -> ValidationStep:
    # The profile's error hides the problem of the event that it was made from, which names the
    # part of the event.
    problem = error.__context__
    if isinstance(problem, ValidationError):
        return _STEP_OF_PART[problem.part]
    if isinstance(error, LimitExceeded):
        return _STEP_OF_LIMIT.get(str(error.details.get("limit")), "limits")
    return _STEP_OF_CODE.get(error.code, "arguments")


def _list_validation_steps(decisive: StepName, result: StepResult) -> Iterable[ExplainedStep]:
    reached = True
    for name in (*VALIDATION_STEPS, *DECISION_STEPS):
        if name == decisive:
            yield ExplainedStep(name, result)
            reached = False
        else:
            yield ExplainedStep(name, "passed" if reached else "skipped")


def _list_decision_steps(trace: DecisionTrace, result: StepResult) -> Iterable[ExplainedStep]:
    for validation in VALIDATION_STEPS:
        yield ExplainedStep(validation, "passed")
    *passed, (last, last_index) = trace.steps
    for name, index in passed:
        yield ExplainedStep(name, "passed", index)
    yield ExplainedStep(last, result, last_index)
    for skipped in DECISION_STEPS[DECISION_STEPS.index(last) + 1 :]:
        yield ExplainedStep(skipped, "skipped")
