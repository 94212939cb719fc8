"""The state of an aggregate: recorded and stored events change it in the same way."""

from __future__ import annotations

import copy
import logging
import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from functools import singledispatchmethod
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import pytest

import seriatim
from seriatim import (
    Aggregate,
    Catalogue,
    Conflict,
    EventSequenceInvalid,
    InvalidArgument,
    InvalidEvent,
    NewEvent,
)
from seriatim.profiles.snapshots import SnapshotStore, is_same

REQUEST: dict[str, Any] = {
    "org_id": "acme",
    "actor_type": "user",
    "actor_id": "u-1",
    "request_id": "r-1",
}
StateT = TypeVar("StateT")


class Events(Aggregate[list[Any]], stream_type="events"):
    """An aggregate whose state is what apply received."""

    def apply(self, event: Any) -> None:
        """Keep the event."""
        self.state.append(event)


def test_recorded_events_are_applied_as_stored_ones() -> None:
    """A2: apply receives the payload as JSON keeps it, before and after the event is stored."""
    with seriatim.open("memory:") as log:
        events = Events("e")
        events.record("x", {"pair": (1, 2), "n": 1.0})
        events.record(NewEvent("y", {"deep": {"a": [1]}}, event_version=3), tags=("t",))
        log.aggregates.save(events, **REQUEST)
        loaded = log.aggregates.load(Events, "e", org_id="acme")

    assert loaded.state == events.state
    assert events.state == [
        NewEvent("x", {"pair": [1, 2], "n": 1.0}),
        NewEvent("y", {"deep": {"a": [1]}}, event_version=3),
    ]


def test_payloads_cannot_be_changed_after_they_were_recorded() -> None:
    """A1: the stored payload is the recorded one, whatever a caller does to its own object."""
    payload = {"items": ["a"]}
    events = Events("e")
    events.record("x", payload)
    payload["items"].append("b")

    assert events.new_events[0].payload == {"items": ["a"]}


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, "\ud800", b"x"])
def test_a_payload_must_be_json(value: object) -> None:
    """A2: a payload that is not JSON is refused when it is recorded, with its path."""
    events = Events("e")
    with pytest.raises(InvalidEvent, match=r"\$\.a"):
        events.record("x", {"a": value})

    assert events.new_events == events.state == []


class Wrong(Aggregate[dict[str, int]], stream_type="wrong"):
    """An aggregate that fails in the middle of an event."""

    def apply(self, event: Any) -> None:
        """Fail after a change."""
        self.state["half"] = 1
        raise KeyError(event.payload["missing"])


def test_an_aggregate_whose_apply_failed_is_not_saved() -> None:
    """L2: after a failure the state may be half changed, so the object cannot be saved."""
    with seriatim.open("memory:") as log:
        wrong = log.aggregates.load(Wrong, "w", org_id="acme")
        with pytest.raises(KeyError):
            wrong.record("x")
        with pytest.raises(Conflict, match=r"apply failed for x; load it again"):
            log.aggregates.save(wrong, **REQUEST)
        assert log.head() == 0


def test_a_failed_load_names_the_event() -> None:
    """L2: an error of apply propagates from a load, with the event in a note."""
    with seriatim.open("memory:") as log:
        log.aggregates.append([NewEvent("x", stream=("wrong", "w"))], **REQUEST)
        with pytest.raises(KeyError) as caught:
            log.aggregates.load(Wrong, "w", org_id="acme")

    assert caught.value.__notes__ == ["while Wrong 'w' applied x at position 1"]


def test_apply_must_be_defined() -> None:
    """L3: an aggregate without apply names the missing method."""

    class Empty(Aggregate[dict[str, int]], stream_type="empty"):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty has no apply\(self, event\)"):
        Empty("e").record("x")


def test_events_of_other_streams_are_refused() -> None:
    """B9: an aggregate records events of its own stream only."""
    events = Events("e")
    events.record(NewEvent("x", stream=("events", "e")))
    with pytest.raises(InvalidArgument, match="cannot have the stream"):
        events.record(NewEvent("x", stream=("events", "f")))
    with pytest.raises(InvalidArgument, match="no catalogue to look up int in"):
        events.record(7)

    assert [event.stream for event in events.new_events] == [("events", "e")]


def test_class_arguments_are_inherited() -> None:
    """A5: a subclass inherits the arguments that it leaves out, and the type of the state."""

    class Base(Aggregate[StateT], version=3):
        pass

    class Order(Base[dict[str, int]], stream_type="order", snapshot_every=5):
        pass

    class Rush(Order, version=4):
        pass

    assert (Rush.stream_type, Rush.version, Rush.snapshot_every) == ("order", 4, 5)
    assert (Order.version, Rush("r").state, Order.state_type) == (3, {}, dict[str, int])
    assert repr(Rush("r")) == "Rush('r', aggregate_seq=None, new_events=0)"


def test_old_versions_are_upcast() -> None:
    """A8: apply receives the newest version, of bound classes and of plain events."""
    catalogue = Catalogue()

    @catalogue.event_type("placed", version=2)
    class Placed(msgspec.Struct):
        total: int
        currency: str

    @catalogue.upcaster("placed", from_version=1)
    @catalogue.upcaster("plain", from_version=1)
    def add_currency(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "currency": "EUR"}

    class Order(Events, catalogue=catalogue):
        pass

    with seriatim.open("memory:") as log:
        old = [NewEvent(name, {"total": 1}, stream=("events", "e")) for name in ("placed", "plain")]
        log.aggregates.append(old, **REQUEST)
        loaded = log.aggregates.load(Order, "e", org_id="acme")

    assert loaded.state == [
        Placed(1, "EUR"),
        NewEvent("plain", {"total": 1, "currency": "EUR"}, event_version=2),
    ]


def test_apply_may_dispatch_by_type() -> None:
    """A8: apply may be a method for each class of the catalogue."""
    catalogue = Catalogue()

    @catalogue.event_type("added")
    class Added(msgspec.Struct):
        count: int

    class Stock(Aggregate[dict[str, int]], stream_type="stock", catalogue=catalogue):
        @singledispatchmethod
        def apply(self, event: Any) -> None:
            """Ignore other events."""

        @apply.register(Added)
        def _(self, event: Added) -> None:
            self.state["count"] = self.state.get("count", 0) + event.count

    stock = Stock("s")
    stock.record(Added(2))
    stock.record("noted")

    assert stock.state == {"count": 2}


def test_a_save_expects_the_loaded_number() -> None:
    """B8: of two objects with the same number one is saved, in memory as on every backend."""
    with seriatim.open("memory:") as log:
        first, second = Counter("c"), Counter("c")
        for counter in (first, second):
            counter.record("x")
        log.aggregates.save(first, **REQUEST)
        refused = False
        try:
            log.aggregates.save(second, **REQUEST)
        except EventSequenceInvalid:
            refused = True

    assert refused


# -- snapshots that cannot be stored or read


class Loose(Aggregate[dict[str, Any]], stream_type="loose", snapshot_every=1):
    """An aggregate whose state changes its type in JSON."""

    def apply(self, event: Any) -> None:
        """Keep a tuple, which JSON turns into a list."""
        self.state["pair"] = tuple(event.payload["pair"])


def test_a_state_that_json_changes_has_no_snapshot(caplog: pytest.LogCaptureFixture) -> None:
    """F8: a state that would not be restored as it was is not stored; the save succeeds."""
    with seriatim.open("memory:") as log, caplog.at_level(logging.WARNING, "seriatim"):
        loose = Loose("l")
        loose.record("x", {"pair": [1, 2]})
        log.aggregates.save(loose, **REQUEST)

        assert log.aggregates.load(Loose, "l", org_id="acme").state == {"pair": (1, 2)}
    assert "the state of Loose is not restored from JSON" in caplog.text


@dataclass
class Names:
    """A state with nested values."""

    names: dict[str, list[int]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, defaultdict(int, {"a": 1})),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ([1], [True]),
        ([1], [1.0]),
        ((1,), [1]),
        ({1}, {1.0}),
        ({"a": {"b": [1]}}, {"a": {"b": [1.0]}}),
        (Names({"a": [1]}), Names({"a": [True]})),
        (NewEvent("x", {"a": 1}), NewEvent("x", {"a": 1.0})),
        ("1", 1),
        ("a", "b"),
    ],
)
def test_states_are_compared_in_values_types_and_order(one: Any, other: Any) -> None:
    """F8: a state is the same only if no later event can find a difference."""
    assert not is_same(one, other)
    assert is_same(one, copy.deepcopy(one))
    assert is_same(other, copy.deepcopy(other))


class Queue(Aggregate[dict[str, int]], stream_type="queue", snapshot_every=2):
    """An aggregate that depends on the order of a dict."""

    def apply(self, event: Any) -> None:
        """Add a name, or remove the oldest."""
        if event.event_type == "joined":
            self.state[event.payload["name"]] = len(self.state)
        else:
            del self.state[next(iter(self.state))]


def test_a_snapshot_keeps_the_order_of_a_dict() -> None:
    """F8: a restored dict has the order of the folded one, which the next event may depend on."""
    with seriatim.open("memory:") as log:
        queues = log.aggregates.for_request(**REQUEST)
        for name in ("zoe", "ann"):
            queue = queues.load(Queue, "q")
            queue.record("joined", {"name": name})
            queues.save(queue)
        queues.execute(Queue, "q", lambda queue: queue.record("left"))

        assert queues.verify_snapshot(Queue, "q").equal
        assert queues.load(Queue, "q").state == {"ann": 1}


class Counter(Aggregate[dict[str, int]], stream_type="counter", snapshot_every=1):
    """A counter with a snapshot after each event."""

    def apply(self, event: Any) -> None:
        """Count the events of each type."""
        self.state["n"] = self.state.get("n", 0) + (event.event_type == "x")


def damage(url: str, statement: str) -> None:
    """Run a statement in the database of the snapshots."""
    with closing(sqlite3.connect(urlsplit(url).path)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "update seriatim_snapshots set stream_seq = 1",  # another event of the stream
        "update seriatim_snapshots set event_id = 'other'",
        "update seriatim_snapshots set position = position + 1",
        "update seriatim_snapshots set stream_seq = 99",
        "update seriatim_snapshots set epoch = epoch + 1",
        "update seriatim_snapshots set log_id = 'other'",
        "update seriatim_snapshots set code = 'other'",
        "update seriatim_snapshots set state = 'torn'",
        "delete from seriatim_snapshots",
        "drop table seriatim_snapshots",
    ],
)
def test_a_wrong_snapshot_is_not_used(statement: str, tmp_path: Path) -> None:
    """F8: a load never uses a snapshot of another event, log, epoch or code, or a torn one."""
    url = f"sqlite:///{tmp_path / 'snapshots.db'}"
    with seriatim.open("memory:") as log:
        counters = log.aggregates.for_request(**REQUEST).snapshots_at(url)
        for _ in range(2):
            counters.execute(Counter, "c", lambda counter: counter.record("x"))
        damage(f"file://{tmp_path / 'snapshots.db'}", statement)
        if "delete" not in statement and "drop" not in statement and "torn" not in statement:
            damage(
                f"file://{tmp_path / 'snapshots.db'}",
                """update seriatim_snapshots set state = '{"n":77}'""",
            )

        assert counters.load(Counter, "c").state == {"n": 2}
        counters.execute(Counter, "c", lambda counter: counter.record("x"))
        assert counters.load(Counter, "c").state == {"n": 3}


def test_verify_finds_a_snapshot_that_is_not_the_fold(tmp_path: Path) -> None:
    """F8: verify compares the stored state with the fold, also where a load would trust it."""
    url = f"sqlite:///{tmp_path / 'snapshots.db'}"
    with seriatim.open("memory:") as log:
        counters = log.aggregates.for_request(**REQUEST).snapshots_at(url)
        counters.execute(Counter, "c", lambda counter: counter.record("x"))
        assert counters.verify_snapshot(Counter, "c").equal
        damage(
            f"file://{tmp_path / 'snapshots.db'}",
            """update seriatim_snapshots set state = '{"n":77}'""",
        )
        proof = counters.verify_snapshot(Counter, "c")

    assert (proof.equal, proof.problem) == (False, "")
    assert proof.stored != proof.folded


def test_a_lost_database_of_snapshots_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """L2: without its snapshots an aggregate is saved and loaded as well, with a warning."""
    file = tmp_path / "snapshots.db"
    with seriatim.open("memory:") as log, caplog.at_level(logging.WARNING, "seriatim"):
        counters = log.aggregates.for_request(**REQUEST).snapshots_at(f"sqlite:///{file}")
        counters.execute(Counter, "c", lambda counter: counter.record("x"))
        file.unlink()
        counters.execute(Counter, "c", lambda counter: counter.record("x"))

        assert counters.load(Counter, "c").state == {"n": 2}
    assert "a snapshot cannot be read" in caplog.text
    assert "no snapshot of counter was stored" in caplog.text


def test_an_older_snapshot_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    """F8: of two processes, the one that stores the older snapshot last does not replace it."""
    url = f"sqlite:///{tmp_path / 'snapshots.db'}"
    with seriatim.open("memory:") as log:
        counters = log.aggregates.for_request(**REQUEST).snapshots_at(url)
        counters.execute(Counter, "c", lambda counter: counter.record("x"))
        model = log.read_models.find(url)
        assert model is not None
        store = SnapshotStore(model.engine)
        older = store.find("acme", ("counter", "c"))
        counters.execute(Counter, "c", lambda counter: counter.record("x"))
        assert older is not None
        store.put(older)

        assert counters.verify_snapshot(Counter, "c").stream_seq == 2
