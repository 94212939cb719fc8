"""A load with snapshots equals the fold of all events, whatever was stored when and by whom."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seriatim
from seriatim import Aggregate, NotFound
from seriatim.profiles.snapshots import is_same

REQUEST: dict[str, Any] = {"actor_type": "user", "actor_id": "u-1", "request_id": "r-1"}


class LedgerState(msgspec.Struct):
    """A state with values of several types, some of which JSON has not."""

    balance: int = 0
    ratio: float = 0.0
    seen: set[str] = msgspec.field(default_factory=set)
    last: tuple[str, int] | None = None
    by_day: dict[int, list[int]] = msgspec.field(default_factory=dict)


class Ledger(Aggregate[LedgerState], stream_type="ledger"):
    """A fold in which the order of events matters."""

    weight = 1

    def apply(self, event: Any) -> None:
        """Apply one entry."""
        state, amount = self.state, event.payload["amount"]
        state.balance = state.balance * 2 + amount * self.weight
        state.ratio = state.ratio / 3 + amount
        state.seen.add(event.payload["name"])
        state.last = event.payload["name"], amount
        state.by_day.setdefault(amount % 3, []).append(state.balance)

    def enter(self, name: str, amount: int) -> None:
        """Record an entry; a change outside of apply must not reach a snapshot."""
        self.record("entered", {"name": name, "amount": amount})
        self.state.balance += 1_000


def make_class(version: int, every: int | None) -> type[Ledger]:
    """Return a version of the code with its own meaning of events."""

    class Version(Ledger, version=version, snapshot_every=every):
        weight = version

    return Version


entries = st.tuples(st.sampled_from("abc"), st.integers(-9, 9))
saves = st.tuples(
    st.lists(entries, min_size=1, max_size=5),
    st.integers(1, 3),  # the version of the code that saves
    st.none() | st.integers(1, 6),  # its interval of snapshots
)


@settings(max_examples=50)
@given(st.lists(saves, max_size=8))
def test_a_load_equals_the_fold(history: list[tuple[Any, ...]]) -> None:
    """F8: with any history, intervals and versions of the code, a load equals the fold."""
    with seriatim.open("memory:") as log:
        ledgers = log.aggregates.for_request(org_id="acme", **REQUEST)
        snapshot: tuple[int, int] | None = None  # the version and the number of the last one
        for batch, version, every in history:
            ledger = ledgers.load(make_class(version, every), "l-1")
            before = ledger.aggregate_seq or 0
            for name, amount in batch:
                ledger.enter(name, amount)
            ledgers.save(ledger)
            assert ledger.aggregate_seq == before + len(batch)
            if every is not None and before // every < (before + len(batch)) // every:
                snapshot = version, before + len(batch)
        for version in (1, 2, 3):
            with_snapshot = ledgers.load(make_class(version, 1), "l-1")
            folded = ledgers.load(make_class(version, None), "l-1")
            assert is_same(with_snapshot.state, folded.state)
            assert with_snapshot.aggregate_seq == folded.aggregate_seq
            check_snapshot(ledgers, make_class(version, 1), snapshot)


def check_snapshot(ledgers: Any, cls: type[Ledger], snapshot: tuple[int, int] | None) -> None:
    """The last snapshot is stored and equals the fold; other versions do not use it."""
    if snapshot is None:
        with pytest.raises(NotFound):
            ledgers.verify_snapshot(cls, "l-1")
        return
    version, seq = snapshot
    proof = ledgers.verify_snapshot(cls, "l-1")
    assert proof.stream_seq == seq
    if version == cls.version:
        assert (proof.equal, proof.problem, proof.stored) == (True, "", proof.folded)
    else:
        assert proof.problem == "it was taken by another class, version or type of state"
