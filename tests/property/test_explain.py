"""Random operations in which every append is explained first, on every backend."""

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from seriatim import AppendResult, Explanation, Log, SeriatimError
from seriatim.log.explanation import EXPLAINED_EVENTS_MAX, explain_draft
from tests.property.logs import EXAMPLES, SUBJECTS, opener
from tests.property.test_state_machine import Draft, Machine, draft_of, outcome_of, plain


class ExplainingMachine(Machine):
    """Explains each append on both logs before it appends it."""

    def _append(self, draft: Draft) -> Draft:
        self.both(draft[0], partial(explain_and_append, draft))
        return draft


def explain_and_append(draft: Draft, log: Log) -> Any:
    """Explain an append twice, append it, and compare the explanation with the outcome."""
    head = log.head()
    explained = explain_draft(log, draft_of(log, draft))
    again = explain_draft(log, draft_of(log, draft))
    assert log.head() == head
    assert (again.outcome, again.steps, plain(again.error)) == (
        explained.outcome,
        explained.steps,
        plain(explained.error),
    )
    outcome = outcome_of(lambda one: one.append_draft(draft_of(one, draft)), log)
    check_agreement(explained, outcome)
    return outcome


def check_agreement(explained: Explanation, outcome: Any) -> None:
    """Compare an explanation with the outcome of the append that followed it."""
    decisive = [step for step in explained.steps if step.result in ("refused", "replayed")]
    if isinstance(outcome, SeriatimError):
        assert explained.outcome == "refused"
        assert explained.error is not None
        assert explained.error.as_dict() == outcome.as_dict()
        assert [one.result for one in decisive] == ["refused"]
        return
    assert isinstance(outcome, AppendResult)
    assert explained.error is None
    assert explained.first_position == outcome.first_position
    if outcome.replayed:
        assert explained.outcome == "replayed"
        assert [one.result for one in decisive] == ["replayed"]
        assert explained.response == outcome.response
        assert explained.id_mismatch == outcome.id_mismatch
        assert explained.events == outcome.records[:EXPLAINED_EVENTS_MAX]
    else:
        assert explained.outcome == "accepted"
        assert {step.result for step in explained.steps} == {"passed"}
        assert explained.stream_seqs == tuple(record.stream_seq for record in outcome.records)


@pytest.mark.timeout(900)  # a failure is shrunk for up to five minutes
@pytest.mark.parametrize("backend", ["memory", *SUBJECTS])
def test_explanations_agree_with_appends(request: pytest.FixtureRequest, backend: str) -> None:
    """B1, B8, C2 to C5, D5: an explanation equals the outcome of its append and stores nothing."""
    opened = opener(request, backend)
    run_state_machine_as_test(
        lambda: ExplainingMachine(opened),  # type: ignore[arg-type] # a factory will do
        settings=settings(
            max_examples=max(1, EXAMPLES // 8),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
