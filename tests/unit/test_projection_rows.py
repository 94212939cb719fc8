"""Folding a list of events: the rows are those that a real run writes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import seriatim
from seriatim import (
    Catalogue,
    InvalidArgument,
    NewEvent,
    ProjectionFailed,
    StreamKind,
    Table,
    frame_projection,
    projection,
)
from seriatim.testing import check_batches, fold


def seat(event_type: str, seat: str, **payload: Any) -> NewEvent:
    """Return an event of a seat."""
    return NewEvent(event_type, {"seat": seat, **payload}, stream=("seat", seat))


@projection("seats", key="payload.seat", columns={"guest": str, "changes": int}, events=["seat.*"])
def seats(row: Any, event: Any) -> Any:
    """Keep the guest of each seat; a released seat has no row."""
    if event.event_type == "seat.released":
        return None
    return {"guest": event.payload["guest"], "changes": row["changes"] + 1 if row else 1}


HISTORY = [
    seat("seat.booked", "12A", guest="ann"),
    seat("seat.booked", "12B", guest="bob"),
    NewEvent("show.opened"),
    seat("seat.booked", "12A", guest="cleo"),
    seat("seat.released", "12B"),
]


def test_rows_are_those_of_the_first_table() -> None:
    """I1: the result is the list of rows in the order of their key; other events are left out."""
    rows = fold(seats, HISTORY)

    assert rows == [{"key": "12A", "guest": "cleo", "changes": 2}]
    assert rows.tables == {"seats": rows}
    assert rows.failures == []
    assert fold(seats, []) == []


def test_rows_equal_those_of_a_log() -> None:
    """I3, I10: the same events on a log give the same rows with the local engine."""
    with seriatim.open("memory:") as log:
        log.append(HISTORY)
        log.projections.run(seats)

        assert list(log.projections.rows(seats)) == fold(seats, HISTORY)
        assert fold(seats, log.read()) == fold(seats, HISTORY)


class Visits(msgspec.Struct):
    """A state of its own."""

    count: int = 0


@projection(
    "guests",
    key="payload.guest",
    state=Visits,
    tables=[
        Table("visits", key={"guest": str}, columns={"visits": int}),
        Table("first", key={"guest": str}, columns={"at": int}, keep="first"),
    ],
    events=["seat.booked"],
)
def guests(state: Visits | None, event: Any) -> Any:
    """Count the visits of guests."""
    state = Visits() if state is None else state
    state.count += 1
    guest = event.payload["guest"]
    return state, {
        "visits": [{"guest": guest, "visits": state.count}],
        "first": [{"guest": guest, "at": event.position}],
    }


def test_tables_of_their_own() -> None:
    """I1: a projection with several tables has the rows of each, by name."""
    events = [seat("seat.booked", place, guest="ann") for place in ("1", "2")]
    rows = fold(guests, events)

    assert rows == [{"guest": "ann", "visits": 2}]
    assert rows.tables["first"] == [{"guest": "ann", "at": 1}]
    check_batches(guests, events * 2)


def test_numbers_are_those_of_the_log() -> None:
    """B3, B5: positions begin at 1, and streams at the first number of their kind."""

    @projection("numbers", key="event_id", columns={"at": int, "seq": int})
    def numbers(_: Any, event: Any) -> Any:
        return {"at": event.position, "seq": event.stream_seq}

    events = [
        NewEvent("a", stream=("ticket", "1"), event_id="1"),
        NewEvent("b", event_id="2"),
        NewEvent("a", stream=("ticket", "1"), event_id="3"),
    ]
    rows = fold(numbers, events, declarations=[StreamKind(name="ticket", first_seq=0)])

    assert [(row["at"], row["seq"]) for row in rows] == [(1, 0), (2, None), (3, 1)]


def test_records_keep_their_positions() -> None:
    """E1: records of a log keep their positions and numbers, also if there are gaps."""

    @projection("places", key="payload.seat", columns={"at": int, "seq": int})
    def places(_: Any, event: Any) -> Any:
        return {"at": event.position, "seq": event.stream_seq}

    with seriatim.open("memory:", tenant_id="acme") as log:
        log.append([NewEvent("noise") for _ in range(3000)])
        log.append(HISTORY)
        some = [record for record in log.read(types=["seat.*"]) if record.payload["seat"] == "12A"]

    assert fold(places, some) == [{"key": "12A", "at": 3004, "seq": 2}]
    check_batches(places, some)


def test_upcasters_and_classes() -> None:
    """I5, A8: events of older versions are upcast; instances of classes are events."""
    catalogue = Catalogue()

    @catalogue.event_type("paid", version=2)
    class Paid(msgspec.Struct):
        order: str
        cents: int

    @projection(
        "payments",
        key="payload.order",
        columns={"cents": int},
        upcasters={("paid", 1): lambda old: {**old, "cents": old["euros"] * 100}},
    )
    def payments(row: Any, event: Any) -> Any:
        return {"cents": (row["cents"] if row else 0) + event.payload["cents"]}

    events = [NewEvent("paid", {"order": "o", "euros": 2}), Paid("o", 50)]

    assert fold(payments, events, catalogue=catalogue) == [{"key": "o", "cents": 250}]


def make_failing(policy: Any) -> Any:
    """Return a projection that fails for one event."""

    @projection("fragile", key="payload.k", columns={"n": int}, on_failure=policy)
    def fragile(row: Any, event: Any) -> Any:
        return {"n": (row["n"] if row else 0) + 1 // event.payload["n"]}

    return fragile


FRAGILE = [NewEvent("x", {"k": "a", "n": n}) for n in (1, 0, 1)] + [NewEvent("x", {"k": 1, "n": 1})]


def test_policies_for_failures() -> None:
    """I7: a failure is raised, or skips the event, or parks its key; it is reported."""
    with pytest.raises(ProjectionFailed, match="ZeroDivisionError"):
        fold(make_failing("stop"), FRAGILE)
    skipped = fold(make_failing("skip"), FRAGILE)
    parked = fold(make_failing("park"), FRAGILE)

    assert skipped == [{"key": "1", "n": 1}, {"key": "a", "n": 2}]
    assert parked == [{"key": "1", "n": 1}, {"key": "a", "n": 1}]
    assert [failure.position for failure in skipped.failures] == [2]
    assert [failure.key for failure in parked.failures] == ["a"]
    for policy in ("skip", "park"):
        check_batches(make_failing(policy), FRAGILE)


def test_what_cannot_be_folded_is_refused() -> None:
    """I10, L3: transformations of Spark, and events of several logs, are refused."""
    spark = frame_projection("f", key={"k": str}, columns={"n": int}, merge={"n": "sum"})
    with pytest.raises(InvalidArgument, match="only Spark runs"):
        fold(spark(lambda events: events), [])
    with seriatim.open("memory:") as log:
        log.append(HISTORY[:1])
        [record] = log.for_tenant("acme").append(HISTORY[:1]).records
        records = [*log.read(), record]
    with pytest.raises(InvalidArgument, match="one tenant"):
        fold(seats, records)
    with pytest.raises(InvalidArgument, match="ascending position"):
        fold(seats, [record, record])
    with pytest.raises(InvalidArgument, match="all of them new"):
        fold(seats, [record, NewEvent("x")])


def test_every_split_is_checked() -> None:
    """I3: a fold that depends on its state alone passes, with few and with many events."""
    check_batches(seats, HISTORY)
    check_batches(seats, HISTORY * 4)
    check_batches(seats, [])


def test_a_fold_with_a_memory_of_its_own_is_found() -> None:
    """I3: a fold that remembers events outside of its state depends on its batches."""
    # A global counter: each run counts on from the last, so the rows differ.
    counter = iter(range(1_000_000))

    @projection("leaky", key="payload.seat", columns={"n": int}, events=["seat.*"])
    def leaky(_: Any, event: Any) -> Any:
        return {"n": next(counter)}

    with pytest.raises(AssertionError, match=r"leaky depends on its batches: .* has the row"):
        check_batches(leaky, HISTORY)


class Lossy(msgspec.Struct):
    """A state that JSON does not restore as it was."""

    names: Any = ()


@projection("lossy", key="stream", state=Lossy, tables=[Table("t", {"k": str}, {"kind": str})])
def lossy(state: Lossy | None, event: Any) -> Any:
    """Write the type of a value of the state."""
    state = Lossy() if state is None else state
    kind = type(state.names).__name__
    state.names = (*state.names, event.event_type)
    return state, {"t": [{"k": "x", "kind": kind}]}


def test_states_are_restored_between_events() -> None:
    """I2: the state that a fold receives is the stored one, in a batch as between two."""
    events = [NewEvent("a", stream=("s", "1")) for _ in range(2)]

    assert fold(lossy, events) == [{"k": "x", "kind": "list"}]
    check_batches(lossy, events)
