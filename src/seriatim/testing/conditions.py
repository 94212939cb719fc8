"""B8, B9, D5: conditional appends, which fail if the log has changed since it was read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from seriatim.core.errors import (
    ConditionalAppendConflict,
    EventSequenceInvalid,
    SeriatimError,
)
from seriatim.core.event import AppendResult, EventRecord, NewEvent
from seriatim.core.query import Filter, Query
from seriatim.core.request import ExpectedContext, ExpectedSeq
from seriatim.factory import Log
from seriatim.testing.factories import (
    assert_all_refused,
    assert_refused,
    assert_unchanged,
    event,
    events,
    open_on_same_store,
    run_concurrently,
    stream_seqs,
    trace,
)

SEAT = Query([Filter(types=["seat.reserved"], payload=[{"seat": "12A"}])])


def _call(append: Callable[[], AppendResult], _thread: int) -> AppendResult:
    return append()


class ConditionContract:
    """Conditions are checked atomically with the append."""

    def test_expecting_none_requires_a_new_stream(self, log: Log) -> None:
        """B8: None means that the stream must not exist."""
        log.append([event(stream=("s", "1"))], ExpectedSeq(("s", "1"), None))

        with assert_refused(log, "event_sequence_invalid", expected=None, actual=1):
            log.append([event(stream=("s", "1"))], ExpectedSeq(("s", "1"), None))

    def test_expected_number_is_the_last_of_the_stream(self, log: Log) -> None:
        """B8: the expected number is the last sequence number of the stream."""
        log.append([event(stream=("s", "1")), event(stream=("s", "1"))])

        for wrong in (0, 1, 3):
            with assert_refused(log, "event_sequence_invalid", expected=wrong, actual=2):
                log.append([event(stream=("s", "1"))], ExpectedSeq(("s", "1"), wrong))
        log.append([event(stream=("s", "1"))], ExpectedSeq(("s", "1"), 2))
        assert stream_seqs(log, ("s", "1")) == [1, 2, 3]

    def test_stream_numbered_from_zero_differs_from_a_missing_stream(self, log: Log) -> None:
        """B8: a stream whose last number is 0 is not the same as a missing stream."""
        log.append(trace("t")[:1])

        with assert_refused(log, "event_sequence_invalid", expected=None, actual=0):
            log.append(events(1), ExpectedSeq(("trace", "t"), None))
        with assert_refused(log, "event_sequence_invalid", expected=0, actual=None):
            log.append(events(1), ExpectedSeq(("trace", "u"), 0))
        log.append(events(1), ExpectedSeq(("trace", "t"), 0))

    def test_expecting_zero_does_not_mean_a_missing_stream(self, log: Log) -> None:
        """B8: expecting 0 of a stream numbered from 1 does not mean that it must not exist."""
        with assert_refused(log, "event_sequence_invalid", expected=0, actual=None):
            log.append([event(stream=("s", "1"))], ExpectedSeq(("s", "1"), 0))

    def test_two_expected_numbers_of_one_stream_never_hold(self, log: Log) -> None:
        """B8: all conditions must hold, so two different numbers for one stream never do."""
        log.append([event(stream=("s", "1"))])

        for pair in ((1, None), (None, 1), (2, 1), (1, 2)):
            with assert_refused(log, "event_sequence_invalid"):
                log.append(
                    [event(stream=("s", "1"))], [ExpectedSeq(("s", "1"), seq) for seq in pair]
                )
        log.append([event(stream=("s", "1"))], [ExpectedSeq(("s", "1"), 1)] * 2)
        assert stream_seqs(log, ("s", "1")) == [1, 2]

    def test_condition_on_another_stream_is_checked(self, log: Log) -> None:
        """B8: a condition may be on a stream that the batch does not append to."""
        log.append([event(stream=("s", "1"))])

        log.append([event(stream=("s", "2"))], ExpectedSeq(("s", "1"), 1))
        with assert_refused(log, "event_sequence_invalid"):
            log.append([event(stream=("s", "2"))], ExpectedSeq(("s", "1"), 0))

    def test_several_conditions_must_all_hold(self, log: Log) -> None:
        """B8: one failed condition of several refuses the append."""
        log.append([event(stream=("s", "1"))])
        holds, fails = ExpectedSeq(("s", "1"), 1), ExpectedSeq(("s", "2"), 1)

        with assert_refused(log, "event_sequence_invalid", expected=1, actual=None):
            log.append(events(1), [holds, fails])
        with assert_refused(log, "conditional_append_conflict"):
            log.append(events(1), [holds, ExpectedContext(Query(), None)])
        log.append(events(1), [holds, ExpectedContext(Query(), 1)])

    def test_append_with_the_current_context_version(self, log: Log) -> None:
        """D5: an append with the current version succeeds and advances the version."""
        assert log.query(SEAT).context_version is None
        log.append([event("seat.reserved", payload={"seat": "12A"})], ExpectedContext(SEAT, None))

        assert log.query(SEAT).context_version == 1

    def test_changed_context_is_a_conflict(self, log: Log) -> None:
        """D5: a conflict contains the expected and the actual version, and stores nothing."""
        log.append([event("seat.reserved", payload={"seat": "12A"})])

        for stale in (None, 2, 100):
            with assert_refused(
                log, "conditional_append_conflict", expected=stale, actual=1
            ) as caught:
                log.append(events(2), ExpectedContext(SEAT, stale))
            error = caught[0]
            assert isinstance(error, ConditionalAppendConflict)
            assert (error.expected, error.actual) == (stale, 1)
        assert log.append(events(1)).first_position == 2

    def test_condition_after_a_position(self, log: Log) -> None:
        """D7: `after=N` holds until a matching event is appended after N."""
        seat = event("seat.reserved", payload={"seat": "12A"})
        log.append(events(2), ExpectedContext(SEAT, after=0))
        log.append([seat], ExpectedContext(SEAT, after=2))
        log.append(events(3))

        for after in (3, 4, 6):
            log.append(events(1), ExpectedContext(SEAT, after=after))
        for after in (0, 1, 2):
            with assert_refused(
                log, "conditional_append_conflict", after=after, actual=3
            ) as caught:
                log.append(events(2), ExpectedContext(SEAT, after=after))
            error = caught[0]
            assert isinstance(error, ConditionalAppendConflict)
            assert (error.after, error.actual, error.expected) == (after, 3, None)
        everything = Query()
        with assert_refused(log, "conditional_append_conflict", after=8, actual=9):
            log.append(events(1), ExpectedContext(everything, after=8))
        log.append([event(stream=("s", "1"))], [ExpectedContext(everything, after=9)])

    def test_condition_after_a_position_beyond_the_head_is_refused(self, log: Log) -> None:
        """D7, E5: a position beyond the head is `invalid_argument`, and nothing is stored."""
        log.append(events(2))

        for after in (3, 10**9, 2**63 - 1):
            with assert_refused(log, "invalid_argument", argument="after", head=2):
                log.append(events(1), ExpectedContext(SEAT, after=after))
        log.append(events(1), ExpectedContext(SEAT, after=2))

    def test_context_condition_has_one_bound(self, log: Log) -> None:
        """D7: a context condition has exactly one valid bound."""
        log.append(events(2))
        context: Any = ExpectedContext

        for wrong in (
            context(SEAT),
            context(SEAT, None, 1),
            context(SEAT, version=1, after=1),
            context(SEAT, after=None),
            context(SEAT, after=-1),
            context(SEAT, after=True),
            context(SEAT, after="1"),
            context(SEAT, after=2**63),
        ):
            with assert_refused(log, "invalid_argument"):
                log.append(events(1), wrong)

    def test_one_of_several_racing_appends_after_a_position_wins(self, log: Log) -> None:
        """D7, B9: exactly one of several racing appends on one context wins."""
        log.append(events(3))
        seat = event("seat.reserved", payload={"seat": "12A"})
        batch = [event("other"), seat]

        outcomes = run_concurrently(lambda _: log.append(batch, ExpectedContext(SEAT, after=3)), 8)

        assert sum(isinstance(outcome, AppendResult) for outcome in outcomes) == 1
        assert all(
            isinstance(outcome, AppendResult | ConditionalAppendConflict) for outcome in outcomes
        ), outcomes
        assert log.head() == 5

    def test_retry_of_an_append_after_a_position_is_replayed(self, log: Log) -> None:
        """D7, B4: a retry of a stored append returns its receipt, whatever was appended since."""
        seat = event("seat.reserved", payload={"seat": "12A"})
        first = log.append([seat], ExpectedContext(SEAT, after=0), "key")
        log.append([seat])

        retry = log.append([seat], ExpectedContext(SEAT, after=0), "key")

        assert retry.replayed
        assert retry.first_position == first.first_position

    def test_version_for_a_context_without_events_is_a_conflict(self, log: Log) -> None:
        """D5: a version is a conflict for a context that has no event."""
        log.append(events(1))

        with assert_refused(log, "conditional_append_conflict", expected=1, actual=None):
            log.append(events(1), ExpectedContext(SEAT, 1))

    def test_other_events_do_not_change_the_version(self, log: Log) -> None:
        """D5: events outside the context do not change its version."""
        log.append([event("seat.reserved", payload={"seat": "12A"})])
        log.append([event("seat.reserved", payload={"seat": "12B"}), *events(20)])

        log.append(events(1), ExpectedContext(SEAT, 1))

    def test_min_position_is_ignored_in_conditions(self, log: Log) -> None:
        """D5: min_position of the condition's query is ignored."""
        log.append([event("seat.reserved", payload={"seat": "12A"}), *events(3)])

        past = Query(SEAT.filters, min_position=3)
        with assert_refused(log, "conditional_append_conflict", expected=None, actual=1):
            log.append(events(1), ExpectedContext(past, None))
        log.append(events(1), ExpectedContext(past, 1))

    def test_empty_query_is_a_context_of_all_events(self, log: Log) -> None:
        """D5: the empty query guards the whole log of the tenant."""
        log.append(events(2), ExpectedContext(Query(), None))

        with assert_refused(log, "conditional_append_conflict", expected=1, actual=2):
            log.append(events(1), ExpectedContext(Query(), 1))
        log.append(events(1), ExpectedContext(Query(), 2))

    def test_other_tenants_do_not_change_the_version(self, log: Log) -> None:
        """D5: a context contains only events of its tenant."""
        log.for_tenant("other").append([event("seat.reserved", payload={"seat": "12A"})])

        log.append([event("seat.reserved", payload={"seat": "12A"})], ExpectedContext(SEAT, None))

    def test_context_excludes_the_events_of_the_append(self, log: Log) -> None:
        """D5: the context is evaluated without the append's own events."""
        seats = [event("seat.reserved", payload={"seat": "12A"})] * 2

        assert log.append(seats, ExpectedContext(SEAT, None)).count == 2

    def test_one_racing_append_wins_a_stream(self, log: Log) -> None:
        """B9: exactly one of several racing appends on one stream wins, in every round."""
        for last in (None, 1, 2, 3):

            def operation(number: int, last: int | None = last) -> AppendResult:
                return log.append(
                    [event(stream=("s", "1"), n=number)], ExpectedSeq(("s", "1"), last)
                )

            outcomes = run_concurrently(operation, 12)
            winners = [outcome for outcome in outcomes if isinstance(outcome, AppendResult)]
            losers = [outcome for outcome in outcomes if isinstance(outcome, EventSequenceInvalid)]
            assert (len(winners), len(losers)) == (1, 11)
        assert stream_seqs(log, ("s", "1")) == [1, 2, 3, 4]

    def test_one_racing_append_wins_a_context(self, log: Log) -> None:
        """B9: exactly one of several racing appends on one context wins, in every round."""
        for _ in range(4):
            seen = log.query(SEAT).context_version
            batch = [event("seat.reserved", payload={"seat": "12A"})]

            condition = ExpectedContext(SEAT, seen)
            append = partial(log.append, batch, condition)
            outcomes = run_concurrently(partial(_call, append), 12)
            winners = [outcome for outcome in outcomes if isinstance(outcome, AppendResult)]
            losers = [
                outcome for outcome in outcomes if isinstance(outcome, ConditionalAppendConflict)
            ]
            assert (len(winners), len(losers)) == (1, 11)
        assert log.head() == 4

    def test_appends_on_different_contexts_all_succeed(self, log: Log) -> None:
        """B9: appends on different contexts do not conflict."""

        def operation(number: int) -> AppendResult:
            query = Query([Filter(payload=[{"n": number}])])
            return log.append([event(n=number)], ExpectedContext(query, None))

        assert not [
            outcome
            for outcome in run_concurrently(operation, 12)
            if isinstance(outcome, SeriatimError)
        ]
        assert log.head() == 12

    def test_two_logs_on_one_store_race(self, log: Log) -> None:
        """B9: two committers on one store, as in two processes, still have one winner."""
        with open_on_same_store(log) as other:
            logs = (log, other)
            for round_number in range(6):
                target = ("s", str(round_number))

                def operation(number: int, target: tuple[str, str] = target) -> AppendResult:
                    return logs[number % 2].append(
                        [event(stream=target)], ExpectedSeq(target, None)
                    )

                outcomes = run_concurrently(operation, 6)
                assert sum(isinstance(outcome, AppendResult) for outcome in outcomes) == 1

    def test_expected_values_are_validated(self, log: Log) -> None:
        """B8, D6: a version is absent or a position from 1, a number absent or from 0."""
        wrong: list[Any] = [-1, True, "1", 1.0, 2**63]
        cases: dict[str, tuple[Any, ...]] = {}
        for value in (0, *wrong):
            cases[f"version {value!r}"] = (
                ExpectedContext(SEAT, value),
                "invalid_argument",
                "expected_version",
            )
        for value in wrong:
            cases[f"number {value!r}"] = (
                ExpectedSeq(("s", "1"), value),
                "invalid_argument",
                "condition.seq",
            )
        assert_all_refused(log, lambda condition: log.append(events(1), condition), cases)

    def test_invalid_conditions_are_refused(self, log: Log) -> None:
        """B8: anything else, a bad stream or a bad query in a condition is refused."""
        no_pair: Any = "s-1"
        with assert_refused(log, "invalid_argument", argument="condition"):
            log.append(events(1), no_pair)
        with assert_refused(log, "invalid_argument", argument="stream"):
            log.append(events(1), ExpectedSeq(no_pair, 1))
        with assert_refused(log, "invalid_query", where="filters[0].types[0]"):
            log.append(events(1), ExpectedContext(Query([Filter(types=[""])]), None))

    def test_decide_retries_on_a_conflict(self, log: Log) -> None:
        """B9: decide reads again and retries on a conflict, so that no update is lost."""

        def add(_: int) -> AppendResult | None:
            return log.decide(
                ("counter", "c"),
                lambda records: [event("counted", stream=("counter", "c"), n=len(records))],
                attempts=100,
            )

        assert not [
            outcome for outcome in run_concurrently(add, 6) if isinstance(outcome, SeriatimError)
        ]
        assert [record.payload["n"] for record in log.read()] == list(range(6))

    def test_decide_on_a_context(self, log: Log) -> None:
        """D5: decide works on a context, accepts an empty decision, and has bounded retries."""
        reserve = event("seat.reserved", payload={"seat": "12A"})

        def decider(records: list[EventRecord]) -> list[NewEvent]:
            return [] if records else [reserve]

        first = log.decide(SEAT, decider)
        assert first is not None
        assert first.count == 1
        with assert_unchanged(log):
            assert log.decide(SEAT, decider) is None

        def meddling(_: list[EventRecord]) -> list[NewEvent]:
            log.append([reserve])
            return [reserve]

        with pytest.raises(ConditionalAppendConflict):
            log.decide(SEAT, meddling, attempts=3)
        assert log.head() == 4
