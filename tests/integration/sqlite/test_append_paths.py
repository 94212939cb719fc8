"""The paths of an append: one statement, the fast path, and the validated path."""

import sqlite3
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from seriatim.core.decide import StaleRules
from seriatim.core.errors import EventSequenceInvalid, IdempotencyConflict
from seriatim.core.event import NewEvent
from seriatim.core.kinds import StreamKind
from seriatim.core.query import Filter, Query
from seriatim.core.request import AppendRequest, ExpectedSeq
from seriatim.store.port import Outcome, ReadSpec
from seriatim.store.sqlite.append import FAST_PATH_EVENTS_MAX, is_fast_path
from seriatim.store.sqlite.index_scans import UNINDEXED_SEQ_MAX
from seriatim.store.sqlite.store import SqliteStore
from tests.integration.sqlite.store_appender import (
    StoreAppender,
    make_facts,
    read_everything,
    receipt_or_raise,
)

STREAM = ("order", "1")


@pytest.fixture
def validated_groups(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The groups on the validated path: whether keys and ids were assumed to be new."""
    taken: list[bool] = []
    decide = store._append_validated

    def spy(group: Sequence[AppendRequest], *, assume_new: bool = False) -> list[Outcome]:
        taken.append(assume_new)
        return decide(group, assume_new=assume_new)

    monkeypatch.setattr(store, "_append_validated", spy)
    return taken


def request(
    store: SqliteStore, appender: StoreAppender, *events: NewEvent, **more: Any
) -> AppendRequest:
    """Prepare an append."""
    return appender.request(store, events, **more)


def noted_event(key: str | None = None, stream: tuple[str, str] | None = STREAM) -> NewEvent:
    """Make an event with an idempotency key."""
    return NewEvent("noted", {"a": 1}, stream=stream, idempotency_key=key)


def test_the_fast_path_stores_a_group(
    store: SqliteStore, appender: StoreAppender, validated_groups: list[bool]
) -> None:
    """B1: positions, stream numbers and receipts of a group on the fast path are correct."""
    appender.append(store, noted_event(), noted_event())
    other = ("order", "2")
    group = [
        request(store, appender, noted_event()),
        request(
            store, appender, noted_event(stream=None), noted_event(stream=other), noted_event()
        ),
        request(store, appender, noted_event("k", other)),
    ]
    receipts = [receipt_or_raise(outcome) for outcome in store.append(group)]
    assert validated_groups == []
    assert [(receipt.first_position, receipt.last_position) for receipt in receipts] == [
        (3, 3),
        (4, 6),
        (7, 7),
    ]
    records = [record for receipt in receipts for record in receipt.records]
    assert records == read_everything(store)[2:]
    assert [record.stream_seq for record in records] == [3, None, 1, 4, 2]
    assert [record.append_position for record in records] == [3, 4, 4, 4, 7]


def test_one_refusal_does_not_fail_the_group(
    store: SqliteStore, appender: StoreAppender, validated_groups: list[bool]
) -> None:
    """B4: retries and conflicts in a group have their own outcomes, and the others are stored."""
    first = appender.append(store, noted_event("k"))
    other = NewEvent("noted", {"a": 2}, stream=STREAM, idempotency_key="k")
    group = [
        request(store, appender, one)
        for one in (noted_event("new"), noted_event("k"), other, noted_event())
    ]
    kept, again, conflict, last = store.append(group)
    assert receipt_or_raise(again).replayed
    assert receipt_or_raise(again).records == first.records
    assert isinstance(conflict, IdempotencyConflict)
    assert [receipt_or_raise(one).first_position for one in (kept, last)] == [2, 3]
    assert [record.stream_seq for record in read_everything(store)] == [1, 2, 3]
    assert validated_groups == [
        True
    ]  # the group disagrees with itself, so nothing was tried in trust


def test_a_known_key_is_found_by_its_index(
    store: SqliteStore, appender: StoreAppender, validated_groups: list[bool]
) -> None:
    """C2: a known key that was assumed to be new is found by the unique index and looked up."""
    first = appender.append(store, noted_event("k"))
    again, kept = store.append([request(store, appender, noted_event(key)) for key in ("k", None)])
    assert validated_groups == [True, False]
    assert receipt_or_raise(again).records == first.records
    assert receipt_or_raise(kept).first_position == 2


def test_duplicates_in_one_group_are_stored_once(
    store: SqliteStore, appender: StoreAppender
) -> None:
    """C4: identical appends in one group store one record and return equal receipts."""
    event = NewEvent("noted", {}, event_id="e-1")
    group = [
        request(store, appender, one) for one in (noted_event("k"), noted_event("k"), event, event)
    ]
    by_key, key_duplicate, by_id, id_duplicate = map(receipt_or_raise, store.append(group))
    assert (by_key.records, by_id.records) == (key_duplicate.records, id_duplicate.records)
    assert [one.replayed for one in (by_key, key_duplicate, by_id, id_duplicate)] == [
        False,
        True,
    ] * 2
    assert len(read_everything(store)) == 2


@pytest.mark.parametrize("size", [1, 3])
def test_changed_rules_are_detected_under_the_lock(
    store: SqliteStore, appender: StoreAppender, path: str, size: int
) -> None:
    """A8: an append validated with older declarations is not stored, but reported as stale."""
    group = [request(store, appender, noted_event()) for _ in range(size)]
    rival = SqliteStore(path)
    rival.declare(StreamKind(name="order", expected_seq_required=True))
    rival.close()
    outcomes = store.append(group)
    assert all(isinstance(outcome, StaleRules) for outcome in outcomes)
    assert read_everything(store) == []


def test_a_retry_does_not_conflict_with_its_append(
    store: SqliteStore, appender: StoreAppender
) -> None:
    """B4: a stored append is recognised before its condition, which no longer holds."""
    group = [request(store, appender, noted_event("k"), condition=ExpectedSeq(STREAM, None))]
    (first,) = store.append(group)
    (again,) = store.append(group)
    assert receipt_or_raise(again).replayed
    assert receipt_or_raise(again).records == receipt_or_raise(first).records
    (late,) = store.append(
        [request(store, appender, noted_event(), condition=ExpectedSeq(STREAM, None))]
    )
    assert isinstance(late, EventSequenceInvalid)


def test_other_appends_take_the_validated_path(store: SqliteStore, appender: StoreAppender) -> None:
    """B4: conditions, tags, kinds with expectations and large appends take the validated path."""
    store.declare(StreamKind(name="strict", expected_seq_required=True))
    rules = store.rules()
    requests = {
        "plain": request(store, appender, noted_event()),
        "tagged": request(store, appender, NewEvent("noted", tags=("a",))),
        "demanding": request(store, appender, noted_event(stream=("strict", "1"))),
        "numbered": request(store, appender, NewEvent("noted", stream=STREAM, stream_seq=1)),
        "conditional": request(store, appender, noted_event(), condition=ExpectedSeq(STREAM, None)),
        "large": request(store, appender, *make_facts(FAST_PATH_EVENTS_MAX + 1)),
    }
    assert [name for name, one in requests.items() if is_fast_path([one], rules)] == ["plain"]


def test_the_fast_path_refuses_appends_to_a_closed_stream(
    store: SqliteStore, appender: StoreAppender
) -> None:
    """B7: an append to a closed stream is refused with the closing type, others are stored."""
    store.declare(StreamKind(name="gate", closing_types=("shut",)))
    appender.append(store, NewEvent("shut", stream=("gate", "1")))
    group = [
        request(store, appender, NewEvent("opened", stream=("gate", "1"))),
        request(store, appender, NewEvent("opened", stream=("gate", "2"))),
    ]
    refused, kept = store.append(group)
    assert "closed by" in str(refused)
    assert receipt_or_raise(kept).first_position == 2


def test_a_type_is_found_in_short_and_long_streams(
    store: SqliteStore, appender: StoreAppender
) -> None:
    """F7: events of a type are found in a stream, also before its index by type starts."""
    for number in range(UNINDEXED_SEQ_MAX + 20):
        rare = number in (3, UNINDEXED_SEQ_MAX - 1, UNINDEXED_SEQ_MAX, UNINDEXED_SEQ_MAX + 9)
        appender.append(store, NewEvent("rare" if rare else "often", stream=STREAM))
    wanted = [record.position for record in read_everything(store) if record.event_type == "rare"]
    assert len(wanted) == 4
    spec = ReadSpec(tenant_id="default", limit=9, stream=STREAM, types=("rare",))
    assert [record.position for record in store.read(spec)] == wanted
    query = Query([Filter(types=["rare"], streams=[STREAM])])
    head = store.head()
    found = store.select("default", query, 0, head, 9)
    assert [record.position for record in found] == wanted
    for until in range(head + 1):
        below = [position for position in wanted if position <= until]
        assert store.context_version("default", query, until) == max(below, default=None)


def test_an_append_waits_for_a_locked_file(
    store: SqliteStore, appender: StoreAppender, path: str
) -> None:
    """B9: an append waits for another process's transaction and gets the next position."""
    blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    blocker.execute("begin immediate")
    timer = threading.Timer(0.1, lambda: blocker.execute("rollback"))
    timer.start()
    assert appender.append(store, noted_event()).first_position == 1
    timer.join()
    blocker.close()
