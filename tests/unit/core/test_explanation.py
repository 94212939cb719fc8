"""Explanations: the steps of an append, the deciding step, and the events that it would store."""

from collections.abc import Iterator

import pytest

import seriatim
from seriatim.core.explanation import DECISION_STEPS, VALIDATION_STEPS, Explanation


@pytest.fixture
def log() -> Iterator[seriatim.Log]:
    """An empty log in memory."""
    with seriatim.open("memory:") as opened:
        yield opened


def event(event_type: str = "a", **fields: object) -> seriatim.NewEvent:
    """Return an event of the stream `s/1`."""
    return seriatim.NewEvent.from_mapping(
        {"event_type": event_type, "stream": ("s", "1"), **fields}
    )


def results(explanation: Explanation) -> dict[str, str]:
    """Return the result of each step by its name."""
    return {step.step: step.result for step in explanation.steps}


def test_an_accepted_append_passes_every_step(log: seriatim.Log) -> None:
    """N1: an accepted append has its next position and numbers, and stores nothing."""
    log.append([event()])
    found = log.explain([event(), event(stream=None)])

    assert found.outcome == "accepted"
    assert set(results(found).values()) == {"passed"}
    assert (found.first_position, found.stream_seqs) == (2, (2, None))
    assert log.head() == 1


def test_a_replay_is_decided_by_its_key(log: seriatim.Log) -> None:
    """C1: a known key is a replay of its first append; later steps are skipped."""
    first = log.append([event()], idempotency_key="k")
    found = log.explain([event()], idempotency_key="k")

    assert (found.outcome, found.first_position) == ("replayed", first.first_position)
    assert [one.position for one in found.events] == [1]
    assert (results(found)["idempotency"], results(found)["sequence"]) == ("replayed", "skipped")


def test_a_refused_condition_has_its_index(log: seriatim.Log) -> None:
    """D5: the refused condition is reported with its index and the error of the append."""
    log.append([event()])
    conditions = [seriatim.ExpectedSeq(("s", "2"), None), seriatim.ExpectedSeq(("s", "1"), 5)]
    found = log.explain([event()], conditions)

    assert found.outcome == "refused"
    assert isinstance(found.error, seriatim.SeriatimError)
    refused = [step for step in found.steps if step.result == "refused"]
    assert [(step.step, step.index) for step in refused] == [("conditions", 1)]


@pytest.mark.parametrize(
    ("broken", "step"),
    [
        (event("x\n"), "envelope"),
        (event(payload={"n": float("nan")}), "json"),
        (event(payload={"token": "ghp_" + "a1B2" * 9}), "guard"),
        (event(tags=("x",) * 1000), "envelope"),
        (event(payload={"text": "x" * (2 << 20)}), "limits"),
        (event(tenant_id="other"), "arguments"),
    ],
    ids=["envelope", "json", "guard", "bounded field", "bounded event", "argument"],
)
def test_an_invalid_append_is_refused_at_its_step(
    log: seriatim.Log, broken: seriatim.NewEvent, step: str
) -> None:
    """A1, K1, K3: the step that refuses an invalid append is reported; later ones are skipped."""
    found = log.explain([broken])
    names: list[str] = [*VALIDATION_STEPS, *DECISION_STEPS]
    place = names.index(step)

    assert found.outcome == "refused"
    assert [results(found)[name] for name in names] == [
        *["passed"] * place,
        "refused",
        *["skipped"] * (len(names) - place - 1),
    ]
