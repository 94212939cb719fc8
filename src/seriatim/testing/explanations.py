"""Explanations: what an append would do, found by its own checks and without storing it."""

from __future__ import annotations

from typing import Any

import pytest

from seriatim.core.errors import SeriatimError
from seriatim.core.event import NewEvent
from seriatim.core.explanation import Explanation
from seriatim.core.kinds import EventType, StreamKind
from seriatim.core.query import Filter, Query
from seriatim.core.request import Command, Condition, ExpectedContext, ExpectedSeq
from seriatim.factory import Log
from seriatim.log.catalogue import EventFields
from seriatim.testing.factories import assert_unchanged, event, events, positions

STREAM = ("s", "1")


def find_deciding_step(explanation: Explanation) -> tuple[str, int | None]:
    """Return the step that replayed or refused an append, and its number."""
    [decisive_step] = [step for step in explanation.steps if step.result in ("replayed", "refused")]
    return decisive_step.step, decisive_step.index


def explain_refused(
    log: Log,
    batch: list[NewEvent],
    condition: Condition | list[Condition] | None = None,
    *,
    command: Command | None = None,
) -> Explanation:
    """Explain an append that is refused, and check that the append fails with the same error."""
    with assert_unchanged(log):
        explanation = log.explain(batch, condition, command=command)
        with pytest.raises(SeriatimError) as refusal:
            log.append(batch, condition, command=command)
    assert explanation.outcome == "refused"
    assert explanation.error is not None
    assert explanation.error.as_dict() == refusal.value.as_dict()
    return explanation


class ExplanationContract:
    """B1, C2 to C5, D5: an explanation agrees with the append that follows it."""

    def test_accepted_append_is_explained_without_storing_it(self, log: Log) -> None:
        """B1: an explanation has the numbers that the append would get, and stores nothing."""
        log.append([event(stream=STREAM)])
        batch = [event(stream=STREAM), event(), event(stream=STREAM)]
        with assert_unchanged(log):
            explanation = log.explain(batch, ExpectedSeq(STREAM, 1), "k")
        result = log.append(batch, ExpectedSeq(STREAM, 1), "k")

        assert (explanation.outcome, explanation.error) == ("accepted", None)
        assert explanation.first_position == result.first_position == 2
        assert explanation.stream_seqs == (2, None, 3)
        assert {step.result for step in explanation.steps} == {"passed"}
        assert [step.step for step in explanation.steps] == [
            *("arguments", "envelope", "json", "schema", "limits", "guard"),
            *("command", "idempotency", "conditions", "sequence"),
        ]

    def test_retry_is_explained_by_the_stored_events(self, log: Log) -> None:
        """C2: a retry is explained by the stored events."""
        first = log.append(events(2), idempotency_key="k")
        explanation = log.explain(events(2), idempotency_key="k")

        assert explanation.outcome == "replayed"
        assert find_deciding_step(explanation) == ("idempotency", None)
        assert explanation.first_position == 1
        assert explanation.events == first.records

    def test_repeated_command_is_explained_by_its_response(self, log: Log) -> None:
        """C5: a repeated command is explained by its response."""
        command = Command(actor="u", endpoint="POST /x", key="c", request=1, response={"ok": 1})
        log.append([event(n=1)], command=command)
        explanation = log.explain([event(n=2)], command=command)

        assert find_deciding_step(explanation) == ("command", None)
        assert explanation.response == {"ok": 1}
        assert positions(explanation.events) == [1]
        changed = Command(actor="u", endpoint="POST /x", key="c", request=2)
        refused = explain_refused(log, [event(n=2)], command=changed)
        assert find_deciding_step(refused) == ("command", None)
        assert positions(refused.events) == [1]

    def test_key_conflict_names_the_differing_fields(self, log: Log) -> None:
        """C2, C3: a key conflict names the differing fields and returns the stored event."""
        log.append([event(n=1, event_id="e", idempotency_key="k")])
        keys: list[EventFields] = [{"idempotency_key": "k"}, {"event_id": "e"}]
        for key in keys:
            explanation = explain_refused(log, [event("other", n=2, **key)])
            assert find_deciding_step(explanation) == ("idempotency", None)
            assert explanation.error is not None
            assert explanation.error.details["fields"] == ["payload", "event_type"]
            assert positions(explanation.events) == [1]

    def test_failed_condition_is_named_with_the_later_events(self, log: Log) -> None:
        """B8, D5: a failed condition is named by its number, with the events after it."""
        log.append([event(stream=STREAM, n=n, tags=("t",)) for n in range(3)])
        context = Query([Filter(tags=["t"])])
        holds = ExpectedSeq(STREAM, 3)
        for condition in (
            ExpectedSeq(STREAM, 1),
            ExpectedContext(context, 1),
            ExpectedContext(context, after=1),
        ):
            explanation = explain_refused(log, [event()], condition=[holds, condition])
            assert find_deciding_step(explanation) == ("conditions", 1)
            assert positions(explanation.events) == [2, 3]
        missing = explain_refused(log, [event()], condition=ExpectedSeq(("s", "2"), 4))
        assert missing.events == ()

    def test_explanation_returns_at_most_ten_events(self, log: Log) -> None:
        """K3: an explanation returns at most the first ten events."""
        log.append(events(30, tags=("t",)))
        explanation = explain_refused(
            log, [event()], condition=ExpectedContext(Query([Filter(tags=["t"])]), None)
        )
        assert positions(explanation.events) == list(range(1, 11))

    def test_sequence_problem_is_explained_by_the_last_event(self, log: Log) -> None:
        """A5, B7: a wrong number or a closed stream is explained by its stream's last event."""
        log.declare(StreamKind(name="case", closing_types=("closed",)))
        log.append([event(stream=("case", "1")), event("closed", stream=("case", "1"))])
        log.append([event(stream=STREAM)])
        closed = explain_refused(log, [event(stream=("case", "1"))])
        numbered = explain_refused(log, [event(stream=STREAM, stream_seq=7)])

        assert find_deciding_step(closed) == find_deciding_step(numbered) == ("sequence", None)
        assert positions(closed.events) == [2]
        assert positions(numbered.events) == [3]

    @pytest.mark.parametrize(
        ("step", "batch"),
        [
            ("arguments", []),
            ("envelope", [NewEvent(" ")]),
            ("envelope", [{"event_type": "a", "colour": "red"}]),
            ("json", [NewEvent("a", {"n": {1}})]),
            ("json", [NewEvent("a", [1])]),
            ("schema", [NewEvent("paid", {})]),
            ("limits", [NewEvent("a", {"text": "x" * (1 << 20)})]),
            ("guard", [NewEvent("a", {"password": "hunter2"})]),
        ],
    )
    def test_validation_problem_names_its_step(self, log: Log, step: str, batch: Any) -> None:
        """A2, A5, K1, K3: an explanation names the step that refuses an event."""
        log.declare(EventType(event_type="paid", schema={"required": ["total"]}))
        explanation = explain_refused(log, batch)

        assert find_deciding_step(explanation) == (step, None)
        results = [step.result for step in explanation.steps]
        assert set(results[results.index("refused") + 1 :]) == {"skipped"}

    def test_other_tenants_are_invisible(self, log: Log) -> None:
        """K2: keys, ids, streams and commands of other tenants do not affect an explanation."""
        command = Command(actor="u", endpoint="POST /x", key="c")
        stored = event(stream=STREAM, event_id="e")
        log.append([stored], idempotency_key="k", command=command)
        other = log.for_tenant("other")
        explanation = other.explain(
            [event(stream=STREAM, event_id="e", n=9)],
            ExpectedSeq(STREAM, None),
            "k",
            command=command,
        )
        assert (explanation.outcome, explanation.events) == ("accepted", ())
