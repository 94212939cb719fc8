"""Large appends, which a writer thread sends, are numbered like in the model."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

import seriatim
from seriatim import ExpectedSeq, NewEvent, StreamKind
from seriatim.core.errors import EventSequenceInvalid
from seriatim.core.event import AppendResult
from seriatim.core.profile_rules import LOG_PROFILE
from seriatim.store.postgres.fast_path import DIRECT_EVENTS_MAX

LARGE = DIRECT_EVENTS_MAX + 9


def numbers_of(log: seriatim.Log) -> list[Any]:
    """Return the numbers and contents of each record."""
    return [
        (r.position, r.append_position, r.stream, r.stream_seq, r.payload_json, tuple(r.tags))
        for r in log.read()
    ]


def batch(streams: int, *, of: str = "order", start: int = 0) -> list[NewEvent]:
    """Make a large batch over several streams, partly tagged, partly without a stream."""
    return [
        NewEvent(
            "noted",
            {"n": n},
            stream=None if n % 7 == 3 else (of, f"{(start + n) % streams}"),
            tags=("red", "red", f"t-{n % 3}") if n % 2 else (),
        )
        for n in range(LARGE)
    ]


@pytest.mark.parametrize("streams", [1, 5, LARGE])
def test_batches_are_numbered_like_in_the_model(postgres_url: str, streams: int) -> None:
    """B3, B5: positions and stream numbers of large appends equal those of the memory backend."""
    with seriatim.open(postgres_url) as log, seriatim.open("memory:") as model:
        for one in (log, model):
            one.declare(StreamKind(name="case", first_seq=0))
            receipts = [
                one.append(batch(streams)),
                one.append(batch(streams, of="case")),
                one.append(batch(streams, start=2)),
                one.append(
                    [NewEvent("more", stream=("case", "0")) for _ in range(LARGE)],
                    ExpectedSeq(("case", "0"), one.last_event(("case", "0")).stream_seq),  # type: ignore[union-attr]
                ),
            ]
            for receipt in receipts:
                read = list(one.read(after=receipt.first_position - 1, limit=receipt.count))
                assert list(receipt.records) == read
        assert numbers_of(log) == numbers_of(model)


def test_expected_and_assigned_numbers_share_a_group(postgres_url: str) -> None:
    """B5: appends of a group may name their numbers or leave them to the log."""
    with seriatim.open(postgres_url) as log:
        log.append([NewEvent("begun", stream=("order", "old"))])
        requests = [
            log.appender.prepare_request(log.draft(LOG_PROFILE, [NewEvent("noted", {}, **fields)]))
            for number in range(LARGE)
            for fields in (
                {"stream": ("order", "old"), "stream_seq": 2 * number + 2},
                {"stream": ("order", "old")},
                {"stream": ("order", "new"), "stream_seq": number + 1},
                {},
            )
        ]
        outcomes = log.store.append(requests)

        found = {r.position: r for r in log.read()}
        for outcome in outcomes:
            assert isinstance(outcome, AppendResult)
            assert outcome.records == (found[outcome.first_position],)
        old = [r.stream_seq for r in log.read(stream=("order", "old"))]
        assert old == list(range(1, 2 * LARGE + 2))


def test_wrong_number_in_a_large_group_fails_alone(postgres_url: str) -> None:
    """B4, B5: an append with a wrong number in a large group fails alone."""
    with seriatim.open(postgres_url) as log:
        requests = [
            log.appender.prepare_request(
                log.draft(
                    LOG_PROFILE, [NewEvent("noted", stream=("s", str(n)), stream_seq=1 + (n == 9))]
                )
            )
            for n in range(LARGE)
        ]
        outcomes = log.store.append(requests)

        refused = [n for n, one in enumerate(outcomes) if not isinstance(one, AppendResult)]
        assert refused == [9]
        assert log.head() == LARGE - 1


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_number_ahead_of_its_group_fails(postgres_url: str, size: int) -> None:
    """B5: an append that requires a later append of its group is refused."""
    with seriatim.open(postgres_url) as log:
        requests = [
            log.appender.prepare_request(
                log.draft(
                    LOG_PROFILE,
                    [NewEvent("noted", stream=("s", str(n)), stream_seq=seq) for n in range(size)],
                )
            )
            for seq in (2, 1)
        ]
        early, right = log.store.append(requests)

        assert isinstance(early, EventSequenceInvalid)
        assert isinstance(right, AppendResult)
        assert [r.stream_seq for r in log.read()] == [1] * size


@pytest.mark.parametrize("seqs", [(1, None), (None, 1)])
def test_expectations_of_a_group_hold_in_order(
    postgres_url: str, seqs: tuple[int | None, int | None]
) -> None:
    """B5: expectations on one stream in one group are evaluated in the order of the group."""
    with seriatim.open(postgres_url) as log:
        requests = [
            log.appender.prepare_request(
                log.draft(
                    LOG_PROFILE,
                    [NewEvent("noted", stream=("s", "1"))],
                    ExpectedSeq(("s", "1"), seq),
                )
            )
            for seq in seqs
        ]
        outcomes = log.store.append(requests)

        kept = [isinstance(outcome, AppendResult) for outcome in outcomes]
        assert kept == [seqs[0] is None, True]
        assert [r.stream_seq for r in log.read()] == list(range(1, sum(kept) + 1))


def test_a_kind_declared_after_its_streams_started(postgres_url: str) -> None:
    """A8, F2: a stream keeps its first number when its kind is declared later."""
    with seriatim.open(postgres_url) as log:
        log.append([NewEvent("noted", stream=("case", "1"))])
        log.declare(StreamKind(name="case", first_seq=0, closing_types=("closed",)))
        log.append([NewEvent("noted", stream=("case", "1")) for _ in range(LARGE)])
        log.append([NewEvent("closed", stream=("case", "1"))])
        assert [r.stream_seq for r in log.read(stream=("case", "1"))] == list(range(1, LARGE + 3))


def test_the_trigger_checks_large_groups(postgres_url: str) -> None:
    """F2: the trigger refuses events after a closing event within a group of many streams."""
    with seriatim.open(postgres_url) as log:
        log.declare(StreamKind(name="case", closing_types=("closed",)))
        log.append([NewEvent("noted", stream=("case", str(n))) for n in range(LARGE)])
    insert = (
        "insert into seriatim.events (position, append_position, recorded_us, event_version,"
        " event_key, payload_hash, tenant_id, payload, stream_key, stream_type, stream_id,"
        " stream_seq, event_type)"
        " select %(n)s + row_number() over (order by e.position, t.seq), %(n)s + 1, 1, 1,"
        " gen_random_uuid(), e.payload_hash, 'default', '{}', e.stream_key, 'case', e.stream_id,"
        " t.seq, case when t.seq = %(closing)s and e.stream_id = '5' then 'closed' else 'x' end"
        " from seriatim.events e, (values (2), (3)) t (seq)"
    )
    for closing, state in ((2, "SQ001"), (3, None)):
        with psycopg.connect(postgres_url) as connection:
            try:
                connection.execute(insert, {"n": LARGE, "closing": closing})
                found = None
            except psycopg.Error as error:
                found = error.sqlstate
        assert found == state
