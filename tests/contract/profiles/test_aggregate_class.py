"""Aggregates as classes: their state is the fold of their events, on every backend."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import seriatim
from seriatim import (
    Aggregate,
    Catalogue,
    Command,
    Conflict,
    EventSequenceInvalid,
    IdempotencyKeyReuse,
    InvalidArgument,
    InvalidEvent,
    NewEvent,
    NotFound,
    SchemaViolation,
    StreamKind,
)
from seriatim.factory import RemoteLog, find_read_model, open_read_model
from seriatim.log.projections import ReadModelConnections
from seriatim.profiles.aggregates import Aggregates
from seriatim.telemetry import TelemetryEvent

REQUEST: dict[str, Any] = {"actor_type": "user", "actor_id": "u-1", "request_id": "r-1"}
shop = Catalogue()


@shop.event_type("item.added")
class ItemAdded(msgspec.Struct):
    """An item of an order."""

    sku: str
    count: int = 1


class OrderState(msgspec.Struct):
    """What an order must remember."""

    items: dict[str, int] = msgspec.field(default_factory=dict)
    notes: int = 0


class Order(Aggregate[OrderState], stream_type="order", catalogue=shop):
    """An order of some items, at most five."""

    def apply(self, event: Any) -> None:
        """Count items and notes."""
        match event:
            case ItemAdded(sku=sku, count=count):
                self.state.items[sku] = self.state.items.get(sku, 0) + count
            case NewEvent(event_type="order.noted"):
                self.state.notes += 1

    def add(self, sku: str, count: int = 1) -> None:
        """Add an item unless the order is full."""
        if sum(self.state.items.values()) + count > 5:
            msg = "the order is full"
            raise ValueError(msg)
        self.record(ItemAdded(sku, count))

    def note(self, text: str) -> None:
        """Add a note."""
        self.record("order.noted", {"text": text}, tags=("note",))


class Saved(Order, snapshot_every=3):
    """An order with snapshots."""


@pytest.fixture
def orders(log: seriatim.Log) -> Aggregates:
    """The profile of one request of acme."""
    return log.aggregates.for_request(org_id="acme", **REQUEST)


@pytest.fixture
def saved(log: seriatim.Log, tmp_path: Path) -> Aggregates:
    """The same with a place for snapshots, which also the log of a service then has."""
    if isinstance(log, RemoteLog):
        # As `seriatim.open` does; the fixture builds its log by hand.
        log.read_models = ReadModelConnections(find_read_model, None, open_read_model)
    url = f"sqlite:///{tmp_path / 'snapshots.db'}"
    return log.aggregates.for_request(org_id="acme", **REQUEST).snapshots_at(url)


def add(sku: str, count: int = 1) -> Callable[[Order], None]:
    """Return a command."""
    return lambda order: order.add(sku, count)


def note(number: int) -> Callable[[Order], None]:
    """Return another command."""
    return lambda order: order.note(str(number))


# -- load and save


def test_state_is_the_fold_of_the_stored_events(orders: Aggregates) -> None:
    """B1, A1: a saved aggregate is loaded with its state and the number of its last event."""
    order = orders.load(Order, "o-1")
    assert (order.aggregate_seq, order.state) == (None, OrderState())
    order.add("a", 2)
    order.add("b")
    order.note("gift")
    receipt = orders.save(order)

    assert receipt is not None
    assert (receipt.count, order.aggregate_seq, order.new_events) == (3, 3, [])
    loaded = orders.load(Order, "o-1")
    assert loaded.state == order.state == OrderState({"a": 2, "b": 1}, notes=1)
    assert (loaded.aggregate_seq, loaded.org_id) == (3, "acme")
    assert [event.tags for event in receipt.events] == [(), (), ("note",)]


def test_an_unchanged_aggregate_is_not_appended(orders: Aggregates) -> None:
    """B2: without new events nothing is stored, and there is no receipt."""
    assert orders.save(orders.load(Order, "o-1")) is None
    assert orders.execute(Order, "o-1", lambda _: None) is None


def test_save_expects_the_loaded_number(orders: Aggregates, log: seriatim.Log) -> None:
    """B8: of two objects of one aggregate the second cannot be saved, new and existing alike."""
    for seq in (None, 1):
        first, second = orders.load(Order, "o-1"), orders.load(Order, "o-1")
        first.add("a")
        second.add("b")
        orders.save(first)
        head = log.head()
        with pytest.raises(EventSequenceInvalid) as caught:
            orders.save(second)

        assert (caught.value.code, log.head()) == ("event_sequence_invalid", head)
        assert caught.value.details["expected"] == seq
        assert [event.event_type for event in second.new_events] == ["item.added"]


def test_an_aggregate_can_be_saved_again(orders: Aggregates) -> None:
    """B5: after a save the object continues with the next number."""
    order = Order("o-1")
    for number in (1, 2, 3):
        order.note(str(number))
        orders.save(order)

    assert order.aggregate_seq == 3
    assert orders.load(Order, "o-1").state.notes == 3


def test_a_repeated_save_stores_its_events_once(orders: Aggregates, log: seriatim.Log) -> None:
    """B10, C3: events keep their ids, so a save with an unknown outcome can be repeated."""
    order = Order("o-1")
    order.add("a")
    lost = orders.load(Order, "o-1")
    orders.save(order)
    stored = log.for_tenant("acme").last_event(("order", "o-1"))
    assert stored is not None
    # As if the response had been lost: the object still has its events, with their ids.
    lost.record(ItemAdded("a"), event_id=stored.event_id)
    receipt = orders.save(lost)

    assert receipt is not None
    assert receipt.replayed
    assert (lost.aggregate_seq, lost.new_events, lost.defect) == (1, [], None)
    assert log.head() == stored.position


def test_fields_of_a_request_are_required(log: seriatim.Log) -> None:
    """A7: organisation, actor and request id are required, in the call or for the request."""
    order = Order("o-1")
    order.add("a")
    with pytest.raises(InvalidEvent, match="org_id: is required"):
        log.aggregates.save(order, **REQUEST)
    for field in REQUEST:
        fields = {"org_id": "acme", **REQUEST, field: None}
        with pytest.raises(InvalidEvent, match=field):
            log.aggregates.save(order, **fields)

    receipt = log.aggregates.save(order, org_id="acme", correlation_id="c-1", **REQUEST)
    assert receipt is not None
    [event] = receipt.events
    assert (event.org_id, event.actor_id, event.request_id) == ("acme", "u-1", "r-1")
    assert event.correlation_id == "c-1"


def test_unknown_fields_of_a_request_are_named(log: seriatim.Log) -> None:
    """L3: a misspelled field is a TypeError that lists the fields."""
    unknown: Any = {"actor": "u-1"}
    with pytest.raises(TypeError, match=r"'actor'.* org_id, actor_type"):
        log.aggregates.for_request(**unknown)
    order = Order("o-1")
    with pytest.raises(TypeError, match="no field 'actor'"):
        log.aggregates.save(order, **unknown)


def test_a_request_is_used_by_all_calls(orders: Aggregates) -> None:
    """A7: appends and reads of a request need not repeat its fields; given ones win."""
    result = orders.append([NewEvent("x", stream=("note", "n"))], actor_id="u-2")

    assert [(event.actor_id, event.org_id) for event in result.events] == [("u-2", "acme")]
    assert [event.event_type for event in orders.read().events] == ["x"]
    assert orders.load("note", "n").aggregate_seq == 1


def test_organisations_are_isolated(log: seriatim.Log) -> None:
    """K2: an aggregate of one organisation does not exist for another, nor can it be moved."""
    log.aggregates.execute(Order, "o-1", add("a"), org_id="acme", **REQUEST)
    order = log.aggregates.load(Order, "o-1", org_id="globex")
    assert order.aggregate_seq is None
    order.add("b")
    with pytest.raises(InvalidArgument, match="org_id must be that"):
        log.aggregates.save(order, org_id="acme", **REQUEST)

    log.aggregates.save(order, **REQUEST)
    assert log.aggregates.load(Order, "o-1", org_id="globex").state.items == {"b": 1}
    assert log.aggregates.load(Order, "o-1", org_id="acme").state.items == {"a": 1}


class Cluster(Aggregate[dict[str, int]], stream_type="cluster", snapshot_every=1):
    """An aggregate of infrastructure."""

    def apply(self, event: Any) -> None:
        """Count the nodes."""
        self.state["nodes"] = self.state.get("nodes", 0) + (event.event_type == "node.added")


def test_infrastructure_belongs_to_no_organisation(log: seriatim.Log, saved: Aggregates) -> None:
    """A7, K2: aggregates of an infrastructure kind need no organisation, and ignore a default."""
    log.declare(StreamKind(name="cluster", infrastructure=True))
    receipt = saved.execute(Cluster, "eu", lambda cluster: cluster.record("node.added"))

    assert receipt is not None
    assert receipt.events[0].org_id is None
    assert log.aggregates.load(Cluster, "eu").state == {"nodes": 1}
    assert saved.verify_snapshot(Cluster, "eu").equal
    cluster = log.aggregates.load(Cluster, "eu")
    cluster.record("node.added")
    with pytest.raises(InvalidArgument, match="org_id must be left out"):
        log.aggregates.save(cluster, org_id="acme", **REQUEST)


class Ticket(Aggregate[dict[str, int]], stream_type="ticket"):
    """An aggregate of a declared kind."""

    def apply(self, event: Any) -> None:
        """Count the events."""
        self.state["events"] = self.state.get("events", 0) + event.event_version


def test_a_closed_aggregate_is_not_retried(log: seriatim.Log, orders: Aggregates) -> None:
    """B7: an aggregate that is closed refuses events with `conflict`, at the first attempt."""
    log.declare(StreamKind(name="ticket", opening_type="opened", closing_types=("closed",)))
    for event_type in ("opened", "closed"):
        ticket = orders.load(Ticket, "t")
        ticket.record(event_type)
        orders.save(ticket)
    calls: list[Ticket] = []

    def decide(ticket: Ticket) -> None:
        calls.append(ticket)
        ticket.record("reopened")

    with pytest.raises(Conflict):
        orders.execute(Ticket, "t", decide)
    assert len(calls) == 1


def test_streams_may_be_numbered_by_the_caller(log: seriatim.Log, orders: Aggregates) -> None:
    """A5, B5: events of a kind that the caller numbers get the next numbers, also from 0."""
    log.declare(
        StreamKind(name="ticket", first_seq=0, numbered_by="caller", expected_seq_required=True)
    )
    for seq in (0, 1):
        receipt = orders.execute(Ticket, "t", lambda ticket: ticket.record("x"))
        assert receipt is not None
        assert [event.aggregate_seq for event in receipt.events] == [seq]
    assert orders.load(Ticket, "t").state == {"events": 2}


def test_declared_classes_are_enforced_by_the_store(log: seriatim.Log, orders: Aggregates) -> None:
    """A8: with the catalogue of the class in the log, the store checks its payloads."""
    log.catalogue.include(shop)
    with pytest.raises(SchemaViolation, match=r"new event .* does not fit ItemAdded: \$.count"):
        Order("o-1").record("item.added", {"sku": "a", "count": "two"})
    with pytest.raises(SchemaViolation):  # by a class without the catalogue
        orders.execute(Ticket, "t", lambda ticket: ticket.record("item.added", {"count": "two"}))


# -- execute


def test_execute_loads_again_after_a_conflict(orders: Aggregates) -> None:
    """B9: a conflict makes execute load the new events and decide again."""
    seen: list[int | None] = []

    def decide(order: Order) -> None:
        seen.append(order.aggregate_seq)
        if len(seen) < 3:  # another writer is faster, twice
            orders.execute(Order, "o-1", add("b"))
        order.add("a")

    receipt = orders.execute(Order, "o-1", decide)

    assert seen == [None, 1, 2]
    assert receipt is not None
    assert receipt.events[0].aggregate_seq == 3


def test_execute_gives_up_after_its_attempts(orders: Aggregates) -> None:
    """B8: after the last attempt the conflict is raised, and nothing is stored."""
    calls: list[int] = []

    def decide(order: Order) -> None:
        calls.append(1)
        orders.execute(Order, "o-1", lambda other: other.note("faster"))
        order.add("a")

    with pytest.raises(EventSequenceInvalid):
        orders.execute(Order, "o-1", decide, attempts=2)
    assert len(calls) == 2
    assert orders.load(Order, "o-1").state == OrderState(notes=2)


def test_concurrent_saves(orders: Aggregates) -> None:
    """B9: of concurrent saves of one aggregate exactly one wins, whatever the timing."""
    outcomes: list[str] = []
    barrier = threading.Barrier(4)

    def save(number: int) -> None:
        order = orders.load(Order, "o-1")
        order.add(f"s{number}")
        barrier.wait()
        try:
            orders.save(order)
            outcomes.append("saved")
        except EventSequenceInvalid:
            outcomes.append("conflict")

    run_all([partial(save, number) for number in range(4)])

    assert sorted(outcomes) == ["conflict"] * 3 + ["saved"]
    assert len(orders.load(Order, "o-1").state.items) == 1


def test_concurrent_executions_all_win(orders: Aggregates) -> None:
    """B9: concurrent commands retry, and together never break a rule of the aggregate."""
    refused: list[str] = []

    def execute(number: int) -> None:
        try:
            orders.execute(Order, "o-1", add(f"s{number}"), attempts=50)
        except ValueError as error:
            refused.append(str(error))

    run_all([partial(execute, number) for number in range(7)])

    assert refused == ["the order is full"] * 2
    assert sum(orders.load(Order, "o-1").state.items.values()) == 5


def run_all(calls: list[Callable[[], None]]) -> None:
    """Run calls in threads, and wait for them."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("by", ["command", "idempotency_key"])
def test_a_retried_command_returns_its_first_receipt(orders: Aggregates, by: str) -> None:
    """C5, C8: a retry returns the first receipt without deciding again, even if it would fail."""
    options: dict[str, Any] = {"idempotency_key": "k-1"}
    if by == "command":
        command = Command(actor="u-1", endpoint="add", key="k-1", request={"n": 5}, response="ok")
        options = {"command": command}
    calls: list[int] = []

    def decide(order: Order) -> None:
        calls.append(1)
        order.add("a", 5)

    first = orders.execute(Order, "o-1", decide, **options)
    again = orders.execute(Order, "o-1", decide, **options)

    assert first is not None
    assert again is not None
    assert (len(calls), first.replayed, again.replayed) == (1, False, True)
    assert again.events == first.events
    assert again.response == first.response == ("ok" if by == "command" else None)
    assert first.events[0].idempotency_key == "k-1"


def test_a_key_belongs_to_one_aggregate_and_request(orders: Aggregates) -> None:
    """C5: a key of another aggregate is another command; another request is refused."""
    orders.execute(Order, "o-1", add("a"), idempotency_key="k")
    other = orders.execute(Order, "o-2", add("a"), idempotency_key="k")
    assert other is not None
    assert not other.replayed

    orders.execute(Order, "o-3", add("a"), command=make_command(1))
    with pytest.raises(IdempotencyKeyReuse):
        orders.execute(Order, "o-3", add("a"), command=make_command(2))


def make_command(request: int) -> Command:
    """Return a command with one key and any request."""
    return Command(actor="u-1", endpoint="add", key="k-9", request=request)


def test_concurrent_duplicates_run_once(orders: Aggregates) -> None:
    """C5, C8: concurrent duplicates of a command store its events once and agree on the receipt."""
    positions: list[int] = []

    def execute() -> None:
        receipt = orders.execute(Order, "o-1", add("a"), command=make_command(1), attempts=50)
        assert receipt is not None
        positions.append(receipt.first_event_id)

    run_all([execute] * 4)

    assert positions == [positions[0]] * 4
    assert orders.load(Order, "o-1").state.items == {"a": 1}


def test_a_save_under_a_known_command_leaves_a_defect(orders: Aggregates) -> None:
    """C5: an object whose command was executed before cannot be saved again: load it."""
    orders.execute(Order, "o-1", add("a"), command=make_command(1))
    order = orders.load(Order, "o-1")
    order.add("b")
    receipt = orders.save(order, command=make_command(1))

    assert receipt is not None
    assert receipt.replayed
    with pytest.raises(Conflict, match=r"executed before.* load it again"):
        orders.save(order)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"attempts": 0}, "attempts"),
        ({"idempotency_key": "k", "command": make_command(1)}, "idempotency_key"),
        ({"actor_id": None, "idempotency_key": "k"}, "actor_id"),
    ],
)
def test_malformed_arguments(log: seriatim.Log, arguments: dict[str, Any], problem: str) -> None:
    """L3: a malformed argument is refused before anything is loaded."""
    with pytest.raises(InvalidArgument, match=problem):
        log.aggregates.execute(Order, "o-1", add("a"), **arguments)


def test_only_aggregate_classes_are_loaded(orders: Aggregates) -> None:
    """L3: a class without stream type, or of another kind, is refused with the cure."""
    unnamed = type("Unnamed", (Aggregate,), {})
    wrong: Any
    for wrong in (dict, unnamed, 7):
        with pytest.raises(InvalidArgument, match="is not an aggregate class: declare one"):
            orders.load(wrong, "o-1")
    with pytest.raises(InvalidArgument, match="for loading events only"):
        orders.load(Order, "o-1", after_aggregate_seq=1)  # type: ignore[call-overload]


# -- asyncio


async def test_asyncio(saved: Aggregates, tmp_path: Path) -> None:
    """B13, C8: the same on asyncio, with a decider that may await."""
    orders = saved.aio.for_request(org_id="acme", **REQUEST)
    orders = orders.snapshots_at(f"sqlite:///{tmp_path / 'snapshots.db'}")
    order = await orders.load(Saved, "o-1")
    order.add("a")
    await orders.save(order)
    assert await orders.save(order) is None
    calls: list[int] = []

    async def decide(order: Saved) -> None:
        calls.append(len(calls))
        await asyncio.sleep(0)
        if len(calls) == 1:
            await orders.execute(Saved, "o-1", lambda other: other.note("faster"))
        order.add("b")

    first = await orders.execute(Saved, "o-1", decide, idempotency_key="k")
    again = await orders.execute(Saved, "o-1", decide, idempotency_key="k")

    assert first is not None
    assert again is not None
    assert (calls, again.replayed, again.events) == ([0, 1], True, first.events)
    assert (await orders.load(Saved, "o-1")).state == OrderState({"a": 1, "b": 1}, notes=1)
    assert (await orders.verify_snapshot(Saved, "o-1")).equal


async def test_asyncio_gives_up(log: seriatim.Log) -> None:
    """B8: on asyncio, too, the conflict is raised after the last attempt."""
    orders = log.aggregates.aio.for_request(org_id="acme", **REQUEST)

    async def decide(order: Order) -> None:
        await orders.execute(Order, "o-1", lambda other: other.note("faster"))
        order.add("a")

    with pytest.raises(EventSequenceInvalid):
        await orders.execute(Order, "o-1", decide, attempts=2)


# -- snapshots


def test_a_load_reads_only_the_events_after_its_snapshot(
    log: seriatim.Log, saved: Aggregates
) -> None:
    """F7, F8: a snapshot is stored every third event, and bounds how many events a load reads."""
    for number in range(8):
        saved.execute(Saved, "o-1", note(number))
    with count_records(log) as read:
        order = saved.load(Saved, "o-1")

    assert order.state == OrderState(notes=8)
    assert order.aggregate_seq == 8
    assert sum(read) == 3  # the event of the snapshot, and those after it
    proof = saved.verify_snapshot(Saved, "o-1")
    assert (proof.stream_seq, proof.equal, proof.problem) == (6, True, "")


@contextmanager
def count_records(log: seriatim.Log) -> Iterator[list[float]]:
    """Count the records of each page that the log reads."""
    counts: list[float] = []

    def listen(event: TelemetryEvent) -> None:
        if event.name == "store.read_batch.stop":
            counts.append(event.measurements["count"])

    unsubscribe = log.telemetry.subscribe(listen)
    yield counts
    unsubscribe()


def test_without_an_interval_there_is_no_snapshot(saved: Aggregates) -> None:
    """L3: snapshots are optional; verifying one that does not exist is `not_found`."""
    saved.execute(Order, "o-1", add("a"))
    with pytest.raises(NotFound, match="no snapshot of order 'o-1'"):
        saved.verify_snapshot(Order, "o-1")
    with pytest.raises(InvalidArgument, match="at least 1"):
        type("Wrong", (Order,), {}, snapshot_every=0)


class Fresh(Order, snapshot_every=3, version=2):
    """An order whose code has changed: notes count twice."""

    __qualname__ = "Saved"

    def apply(self, event: Any) -> None:
        """Count notes twice."""
        super().apply(event)
        if isinstance(event, NewEvent):
            self.state.notes += 1


def test_a_snapshot_of_another_version_is_ignored(saved: Aggregates) -> None:
    """F8: a snapshot of another version of the code is not used, and is replaced by the next."""
    for number in range(3):
        saved.execute(Saved, "o-1", note(number))

    assert saved.load(Fresh, "o-1").state.notes == 6
    assert "version" in saved.verify_snapshot(Fresh, "o-1").problem
    for number in range(3):
        saved.execute(Fresh, "o-1", note(number))
    proof = saved.verify_snapshot(Fresh, "o-1")
    assert (proof.stream_seq, proof.equal, proof.problem) == (6, True, "")
    assert saved.load(Saved, "o-1").state.notes == 6  # the old code ignores the new snapshot


def test_a_snapshot_of_another_log_is_ignored(saved: Aggregates, tmp_path: Path) -> None:
    """F8: a snapshot of another log or epoch is not used."""
    url = f"sqlite:///{tmp_path / 'snapshots.db'}"
    with seriatim.open("memory:") as other:
        others = other.aggregates.for_request(org_id="acme", **REQUEST).snapshots_at(url)
        for number in range(3):
            others.execute(Saved, "o-1", note(number))
        assert others.verify_snapshot(Saved, "o-1").problem == ""
    saved.execute(Saved, "o-1", add("a"))

    assert saved.load(Saved, "o-1").state == OrderState({"a": 1})
    assert "another log" in saved.verify_snapshot(Saved, "o-1").problem
