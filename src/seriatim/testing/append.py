"""Section B: appends, the order of their checks, and their failures."""

from __future__ import annotations

import pytest

from seriatim.core.errors import BackendFailure, SeriatimError
from seriatim.core.event import NewEvent
from seriatim.core.kinds import StreamKind
from seriatim.core.request import AppendRequest, ExpectedSeq
from seriatim.factory import Log
from seriatim.store.port import Outcome
from seriatim.testing.factories import (
    SharedStore,
    assert_refused,
    assert_unchanged,
    event,
    events,
    open_on_same_store,
    positions,
    run_concurrently,
    stream_seqs,
    trace,
    trace_event,
)

SECRET = "AKIA" + "A" * 16


class LostResponseStore(SharedStore):
    """A store that commits and then fails, as if the connection were lost around COMMIT."""

    def append(self, group: list[AppendRequest]) -> list[Outcome]:
        """Commit, then raise an ambiguous failure."""
        self.wrapped.append(group)
        msg = "the connection was lost around COMMIT"
        raise BackendFailure(msg, details={"ambiguous": True})


class AppendContract:
    """B1 to B11: an append is atomic and gets one range of positions."""

    def test_positions_of_a_batch_are_consecutive(self, log: Log) -> None:
        """B1: positions are consecutive, from 1, and part of the receipt."""
        first = log.append(events(3))
        second = log.append(events(2))

        assert (first.first_position, first.last_position, first.count) == (1, 3, 3)
        assert (second.first_position, second.last_position, second.count) == (4, 5, 2)
        assert (first.replayed, second.replayed) == (False, False)
        assert [record.payload["n"] for record in first.records] == [0, 1, 2]
        assert positions(list(log.read())) == [1, 2, 3, 4, 5]
        assert log.head() == 5

    def test_any_iterable_is_accepted_as_a_batch(self, log: Log) -> None:
        """B1: a generator of events is accepted as a batch."""
        assert log.append(new_event for new_event in events(2)).count == 2

    def test_events_in_dictionary_form_are_accepted(self, log: Log) -> None:
        """B1: an event in dictionary form is stored like a `NewEvent`."""
        log.append(
            [
                {
                    "event_type": "x",
                    "payload": {"n": 1},
                    "stream_type": "s",
                    "stream_id": "1",
                    "tags": ["t"],
                },
                {"event_type": "x", "stream": ["s", "2"]},
                {"event_type": "x", "stream_type": None, "stream_id": None},
            ]
        )

        assert [record.stream for record in log.read()] == [("s", "1"), ("s", "2"), None]

    def test_an_empty_batch_is_refused(self, log: Log) -> None:
        """B2: an append without events is refused as `empty_append`."""
        with assert_refused(log, "empty_append"):
            log.append([])

    def test_a_group_without_appends_stores_nothing(self, log: Log) -> None:
        """B1: a store that is given no appends returns no outcomes, and stores nothing."""
        log.append(events(1))
        with assert_unchanged(log):
            assert log.store.append([]) == []

    def test_a_malformed_event_is_named_by_its_index(self, log: Log) -> None:
        """B2: one invalid event refuses the whole batch, and the error contains its index."""
        for index in (0, 2, 4):
            batch = events(5)
            batch[index] = event("", n=index)
            with assert_refused(log, "invalid_event", index=index, field="event_type"):
                log.append(batch)

    def test_committed_fields_are_refused(self, log: Log) -> None:
        """B2: fields that only the log may set are refused, and the error names them."""
        for field in ("position", "recorded_at", "append_position", "payload_hash"):
            with assert_refused(log, "invalid_event", index=1, field=field):
                log.append([event(), {"event_type": "x", field: 1}])

    def test_a_failed_append_consumes_nothing(self, log: Log) -> None:
        """B3: a failed append of any kind uses no position."""
        log.append([event(stream=("s", "1"), event_id="e", idempotency_key="k")])
        failing: list[list[NewEvent]] = [
            [],
            [event(""), event()],
            [event(), event(payload={"secret": SECRET})],
            [event(n=1), event(stream=("s", "1"), stream_seq=7)],
            [event(idempotency_key="k", n=2)],
            [event(event_id="e", n=2)],
            [trace_event("TraceFinished", "t", 0)],
        ]
        for batch in failing:
            with pytest.raises(SeriatimError):
                log.append(batch)
        with pytest.raises(SeriatimError):
            log.append(events(2), ExpectedSeq(("s", "1"), 9))

        assert log.append(events(1)).first_position == 2
        assert positions(list(log.read())) == [1, 2]

    def test_positions_are_gapless_from_many_callers(self, log: Log) -> None:
        """B3: concurrent appends leave no gap and no duplicate, and keep each batch together."""
        run_concurrently(lambda number: log.append(events(number % 3 + 1, f"t{number}")), 16)
        records = list(log.read())

        assert positions(records) == list(range(1, len(records) + 1))
        starts = sorted({record.append_position for record in records})
        assert len(starts) == 16
        for start in starts:
            batch = [record for record in records if record.append_position == start]
            assert positions(batch) == list(range(start, start + len(batch)))
            assert len({record.event_type for record in batch}) == 1

    def test_no_reader_sees_a_gap(self, log: Log) -> None:
        """B3: a reader always sees a prefix of the log while others append."""

        def operation(number: int) -> int:
            if number:
                for _ in range(10):
                    log.append(events(2))
                return 0
            seen = 0
            while seen < 60:
                page_positions = positions(log.page(after=seen).records)
                assert page_positions == list(range(seen + 1, seen + 1 + len(page_positions)))
                seen += len(page_positions)
            return seen

        assert run_concurrently(operation, 4)[0] == 60

    def test_the_key_comes_before_the_json(self, log: Log) -> None:
        """B4: given an invalid key and invalid JSON, the key is reported."""
        with assert_refused(log, "invalid_event", field="idempotency_key"):
            log.append([event(idempotency_key="", payload={"x": float("nan")})])

    def test_the_json_comes_before_the_shape(self, log: Log) -> None:
        """B4: given invalid JSON and a wrong shape, the JSON is reported, also after a float."""
        for payload in ({"x": float("nan")}, {"a": 1.5, "x": float("nan")}):
            with assert_refused(log, "invalid_event", field="$.x"):
                log.append([trace_event("TraceStarted", "t", 0, payload=payload)])

    def test_the_shape_comes_before_the_guard(self, log: Log) -> None:
        """B4: given a wrong shape and a secret, the shape is reported."""
        payload = {"workflow": f"{SECRET}"}

        with assert_refused(log, "schema_violation", field="$.title"):
            log.append([trace_event("TraceStarted", "t", 0, payload=payload)])

    def test_the_guard_comes_before_reuse(self, log: Log) -> None:
        """B4: a secret under a stored key is reported as a secret, not as a conflict."""
        log.append([event(idempotency_key="k")])

        with assert_refused(log, "pii_policy_violation", path="$.x"):
            log.append([event(idempotency_key="k", payload={"x": SECRET})])

    def test_reuse_comes_before_the_condition(self, log: Log) -> None:
        """B4: a retry of an append that succeeded never conflicts with itself."""
        condition = ExpectedSeq(("s", "1"), None)
        batch = [event(stream=("s", "1"), stream_seq=1, idempotency_key="k")]
        first = log.append(batch, condition)

        retry = log.append(batch, condition)

        assert retry.replayed
        assert retry.records == first.records

    def test_the_condition_comes_before_the_sequence(self, log: Log) -> None:
        """B4: given a failed condition and a wrong number, the condition is reported."""
        log.append([event(stream=("s", "1"))])

        with assert_refused(log, "event_sequence_invalid", expected=5, actual=1, index=None):
            log.append([event(stream=("s", "1"), stream_seq=9)], ExpectedSeq(("s", "1"), 5))

    def test_log_numbered_streams_are_contiguous(self, log: Log) -> None:
        """B5: a log-numbered stream is contiguous from 1, through batches and appends."""
        log.append([event(stream=("s", "1")), event(stream=("s", "2")), event(stream=("s", "1"))])
        log.append([event(), event(stream=("s", "1"))])

        assert stream_seqs(log, ("s", "1")) == [1, 2, 3]
        assert stream_seqs(log, ("s", "2")) == [1]

    def test_an_expected_number_must_be_the_next(self, log: Log) -> None:
        """B5: a wrong expected number is refused with the expected and the actual one."""
        log.append([event(stream=("s", "1"), stream_seq=1)])

        for wrong in (0, 1, 3):
            with assert_refused(log, "event_sequence_invalid", index=1, expected=2, actual=wrong):
                log.append([event(), event(stream=("s", "1"), stream_seq=wrong)])
        log.append([event(stream=("s", "1"), stream_seq=2)])
        assert stream_seqs(log, ("s", "1")) == [1, 2]

    def test_numbers_rise_with_positions(self, log: Log) -> None:
        """B5: correct numbers in the wrong order are refused, in small and large appends."""
        for size in (2, 50):
            falling = [event(stream=("s", "1"), stream_seq=size - n) for n in range(size)]
            with assert_refused(log, "event_sequence_invalid", index=0, expected=1, actual=size):
                log.append(falling)

    def test_caller_numbered_event_must_have_the_next_number(self, log: Log) -> None:
        """B5: a caller-numbered event must carry the next number."""
        log.append(trace("t")[:2])

        for wrong in (0, 1, 3):
            with assert_refused(log, "event_sequence_invalid", index=0, expected=2, actual=wrong):
                log.append(
                    [trace_event("EntityObserved", "t", wrong, event_id="e", idempotency_key="k")]
                )
        log.append([trace_event("EntityObserved", "t", 2)])
        assert stream_seqs(log, ("trace", "t")) == [0, 1, 2]

    def test_first_event_has_the_opening_type(self, log: Log) -> None:
        """B6: the first event of a stream must have the opening type of its kind."""
        with assert_refused(log, "event_sequence_invalid", index=0):
            log.append([trace_event("InputObserved", "t", 0)])

    def test_opening_type_occurs_only_once(self, log: Log) -> None:
        """B6: the opening type is accepted for the first number of a stream and no other."""
        start = trace_event("TraceStarted", "t", 0)
        second_start = trace_event("TraceStarted", "t", 1)
        with assert_refused(log, "event_sequence_invalid", index=1):
            log.append([start, second_start])
        log.append([start])
        with assert_refused(log, "event_sequence_invalid", index=0):
            log.append([second_start])

    def test_declared_kind_has_its_own_opening_type(self, log: Log) -> None:
        """B6: a declared kind that is numbered by the log obeys its own opening type."""
        log.declare(StreamKind(name="case", opening_type="case.opened"))

        with assert_refused(log, "event_sequence_invalid", index=0):
            log.append([event("case.noted", stream=("case", "1"))])
        log.append([event("case.opened", stream=("case", "1"))])
        with assert_refused(log, "event_sequence_invalid", index=0):
            log.append([event("case.opened", stream=("case", "1"))])

    def test_closed_stream_refuses_events(self, log: Log) -> None:
        """B7: in a closed stream the next number is a conflict, others are an invalid sequence."""
        log.append(trace("t"))

        with assert_refused(log, "conflict", index=0):
            log.append([trace_event("EntityObserved", "t", 10)])
        with assert_refused(log, "event_sequence_invalid", index=0, expected=10, actual=11):
            log.append([trace_event("EntityObserved", "t", 11)])

    def test_events_after_a_closing_event_of_the_same_batch_are_refused(self, log: Log) -> None:
        """B7: events after a closing event of the same batch are refused, too."""
        late = trace_event("EntityObserved", "t", 10)

        with assert_refused(log, "conflict", index=10):
            log.append([*trace("t"), late])

    def test_unnumbered_event_to_a_closed_stream_is_a_conflict(self, log: Log) -> None:
        """B7: an event without a number to a closed stream is a conflict."""
        log.declare(StreamKind(name="case", closing_types=("case.won", "case.lost")))
        log.append(
            [event("case.noted", stream=("case", "1")), event("case.lost", stream=("case", "1"))]
        )

        with assert_refused(log, "conflict", index=0):
            log.append([event("case.noted", stream=("case", "1"))])
        with assert_refused(log, "conflict", index=0):
            log.append([event("case.won", stream=("case", "1"))])
        log.append([event("case.noted", stream=("case", "2"))])

    def test_retry_on_a_closed_stream_returns_the_stored_events(self, log: Log) -> None:
        """B7: an exact retry of stored events returns them, even if the stream is closed."""
        first = log.append(trace("t"))

        retry = log.append(trace("t"))

        assert retry.replayed
        assert retry.records == first.records

    def test_event_of_another_tenant_is_refused(self, log: Log) -> None:
        """B8: an event of another tenant is refused; one that names its own is accepted."""
        with assert_refused(log, "invalid_argument", argument="tenant_id"):
            log.append([event(tenant_id="other")])

        log.append([event(tenant_id=log.tenant_id)])
        assert log.head() == 1

    def test_batch_appends_to_several_streams(self, log: Log) -> None:
        """B9: each stream of a batch has its own numbers; an invalid one refuses the batch."""
        log.append([event(stream=("s", str(number % 5))) for number in range(20)])
        with assert_refused(log, "event_sequence_invalid", index=20):
            log.append(
                [event(stream=("s", str(number % 5))) for number in range(20)]
                + [event(stream=("s", "0"), stream_seq=5)]
            )

        assert [stream_seqs(log, ("s", str(number))) for number in range(5)] == [[1, 2, 3, 4]] * 5

    def test_unconditional_appends_all_succeed(self, log: Log) -> None:
        """B9: concurrent appends to one log-numbered stream are all stored, in some order."""
        results = run_concurrently(lambda n: log.append([event(stream=("s", "1"), n=n)]), 24)

        assert not [result for result in results if isinstance(result, SeriatimError)]
        records = list(log.read_stream(("s", "1")))
        assert [record.stream_seq for record in records] == list(range(1, 25))
        assert sorted(record.payload["n"] for record in records) == list(range(24))

    def test_ambiguous_append_is_resolved_by_a_retry(self, log: Log) -> None:
        """B10: an append without a response is ambiguous; a repeat finds it by key or ids."""
        with open_on_same_store(log, LostResponseStore(log.store)) as cut:
            for batch in ([event(idempotency_key="k")], [event(event_id="e", n=2)]):
                with pytest.raises(BackendFailure) as caught:
                    cut.append(batch)
                assert caught.value.ambiguous
                assert caught.value.retryable
                assert log.append(batch).replayed

        assert log.head() == 2

    def test_kind_can_require_the_expected_number(self, log: Log) -> None:
        """B11: a kind can require ExpectedSeq for appends to existing streams."""
        log.declare(StreamKind(name="doc", expected_seq_required=True))
        log.append([event(stream=("doc", "1")), event(stream=("doc", "1"))])

        with assert_refused(log, "invalid_argument", index=0, argument="condition"):
            log.append([event(stream=("doc", "1"))])
        with assert_refused(log, "invalid_argument", index=1, argument="condition"):
            log.append([event(stream=("doc", "2")), event(stream=("doc", "1"))])
        with assert_refused(log, "invalid_argument", index=0, argument="condition"):
            log.append([event(stream=("doc", "1"))], ExpectedSeq(("doc", "2"), None))
        log.append([event(stream=("doc", "1"))], ExpectedSeq(("doc", "1"), 2))
        assert stream_seqs(log, ("doc", "1")) == [1, 2, 3]
