"""Context conditions: evaluated before the lock, and valid if no event was appended since."""

from __future__ import annotations

import pytest

import seriatim
from seriatim import ConditionalAppendConflict, ExpectedContext, Filter, NewEvent, Query

SEAT = Query([Filter(types=["seat.reserved"], payload=[{"seat": "12A"}])])


def reserve(log: seriatim.Log, version: int | None = None, **options: object) -> int:
    """Reserve the seat, under the condition of a context version."""
    event = NewEvent("seat.reserved", {"seat": "12A"}, **options)  # type: ignore[arg-type]
    return log.append([event], ExpectedContext(SEAT, version)).first_position


def test_an_unchanged_context_takes_the_fast_path(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D5: if no event was appended since the evaluation, the append takes the fast path."""
    with seriatim.open(postgres_url) as log:
        log.append([NewEvent("other")])
        monkeypatch.setattr("seriatim.store.postgres.writer.run_steps", pytest.fail)

        assert reserve(log) == 2
        assert reserve(log, 2) == 3


def test_newer_events_are_checked_under_the_lock(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D5: an event appended between the evaluation and the lock is checked."""
    with seriatim.open(postgres_url) as log, seriatim.open(postgres_url) as other:
        log.append([NewEvent("first")])
        look = log.store._evaluate_contexts  # type: ignore[attr-defined]
        between = [NewEvent("other"), NewEvent("seat.reserved", {"seat": "12A"})]

        def slow_look(*args: object) -> object:
            seen = look(*args)
            if between:
                other.append([between.pop(0)])
            return seen

        monkeypatch.setattr(log.store, "_evaluate_contexts", slow_look)

        assert reserve(log) == 3
        with pytest.raises(ConditionalAppendConflict) as caught:
            reserve(log, 3)
        assert caught.value.details["actual"] == 4
        assert log.head() == 4


def test_a_repeat_is_no_conflict(postgres_url: str) -> None:
    """B4, C3: a stored append is recognised before its condition is evaluated."""
    with seriatim.open(postgres_url) as log:
        log.append([NewEvent("first")])

        assert reserve(log, event_id="e") == reserve(log, event_id="e") == 2
        assert log.head() == 2
