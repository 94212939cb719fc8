"""The registry against a small model: random operations on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from seriatim.core.errors import LeaseLost, NotFound
from seriatim.core.handler import Delivery, Handler, RetryPolicy, handler
from seriatim.delivery.claims import Claim
from seriatim.delivery.entries import EntryFilter
from seriatim.delivery.registry import Registry
from seriatim.factory import open_registry

STREAMS = ["a", "b"]
NUMBERS = range(1, 7)
HOUR = 3600.0
places = st.tuples(st.sampled_from(STREAMS), st.sampled_from(NUMBERS))


class EventState(msgspec.Struct):
    """The model's state of an event."""

    status: str = "new"
    open: bool = True  # whether its lease or backoff has ended
    token: int = 0
    attempts: int = 0


def delivery(place: tuple[str, int]) -> Delivery:
    """Return the event at a place."""
    stream, number = place
    return Delivery(
        event_id=f"{stream}{number}",
        position=number,
        stream=("s", stream),
        stream_seq=number,
        event={"n": number},
    )


class RegistryMachine(RuleBasedStateMachine):
    """A registry and its model, which must agree."""

    registry: Registry
    handler: Handler

    def __init__(self) -> None:
        super().__init__()
        with self.registry.engine.transaction() as session:
            for table in ("handled", "streams", "handlers", "sources"):
                session.run(f"delete from {self.registry.engine.schema_prefix}seriatim_{table}")
        self.events: dict[tuple[str, int], EventState] = {}
        self.last: dict[str, int] = dict.fromkeys(STREAMS, 0)
        self.claims: list[tuple[tuple[str, int], Claim]] = []

    # -- the model

    def state_of(self, place: tuple[str, int]) -> EventState:
        """Return the model's state of an event."""
        return self.events.get(place, EventState())

    def verdict(self, place: tuple[str, int], batch: dict[tuple[str, int], str]) -> str:
        """Return the expected verdict of a claim, given those before it in the batch."""
        one, (stream, number) = self.state_of(place), place
        if one.status in ("done", "skipped", "passed"):
            return "duplicate_done"
        if one.status in ("dead", "stale"):
            return one.status
        if not one.open:
            return "in_progress" if one.status == "claimed" else "waiting"
        if one.status == "claimed" and one.attempts >= self.handler.retry.attempts:
            return "dead"
        if self.handler.mode == "latest_wins":
            return "stale" if number <= self.last[stream] else "claimed"
        if number <= self.last[stream]:
            return "stale" if one.status in ("new", "blocked") else "claimed"
        before = range(self.last[stream] + 1, number)
        free = all(batch.get((stream, n)) in ("claimed", "duplicate_done") for n in before)
        return "claimed" if free else "blocked"

    def settle(self, stream: str, number: int) -> None:
        """Advance a stream."""
        self.last[stream] = max(self.last[stream], number)

    # -- operations

    @rule(wanted=st.lists(places, min_size=1, max_size=6, unique=True))
    def claim(self, wanted: list[tuple[str, int]]) -> None:
        """Claim events; each must get the verdict of the model."""
        expected: dict[tuple[str, int], str] = {}
        for place in sorted(wanted):
            expected[place] = self.verdict(place, expected)
        found = self.registry.claim_all(self.handler, [delivery(one) for one in wanted])
        assert {p: c.verdict for p, c in zip(wanted, found, strict=True)} == expected
        for place, claim in zip(wanted, found, strict=True):
            one = self.events.setdefault(place, EventState())
            if claim.claimed:
                one.status, one.open = "claimed", False
                one.token, one.attempts = one.token + 1, one.attempts + 1
                assert (claim.token, claim.attempt) == (one.token, one.attempts)
                self.claims.append((place, claim))
            elif claim.verdict == "dead" and one.status == "claimed":
                one.status = "dead"
            elif one.status == "new":
                del self.events[place]

    def is_held(self, place: tuple[str, int], claim: Claim) -> bool:
        """Return whether a claim is still valid."""
        one = self.state_of(place)
        return one.status == "claimed" and one.token == claim.token

    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        """Complete a claim; its stream advances, or the claim was lost."""
        if not self.claims:
            return
        place, claim = data.draw(st.sampled_from(self.claims))
        one, strict = self.state_of(place), self.handler.mode == "strict"
        again = one.status == "done" and one.token == claim.token
        open_before = strict and any(
            self.state_of((place[0], number)).status
            in ("claimed", "failed", "blocked", "dead", "unknown")
            for number in range(self.last[place[0]] + 1, place[1])
        )
        if open_before or not (self.is_held(place, claim) or again):
            with pytest.raises(LeaseLost):
                self.registry.mark_done(self.handler, [claim])
            return
        self.registry.mark_done(self.handler, [claim])
        outdated = not strict and place[1] < self.last[place[0]]
        one.status = "stale" if outdated else "done"
        self.settle(*place)

    @rule(data=st.data(), dead=st.booleans())
    def fail(self, data: st.DataObject, dead: bool) -> None:
        """Fail: back off for an hour, or become a dead letter."""
        if not self.claims:
            return
        place, claim = data.draw(st.sampled_from(self.claims))
        one, status = self.state_of(place), "dead" if dead else "failed"
        again = one.status == status and one.token == claim.token
        pause = None if dead else HOUR
        if not (self.is_held(place, claim) or again):
            with pytest.raises(LeaseLost):
                self.registry.mark_failed(self.handler, claim, "no", pause_s=pause)
            return
        self.registry.mark_failed(self.handler, claim, "no", pause_s=pause)
        one.status, one.open = status, False

    @rule()
    def expire(self) -> None:
        """Let every lease and backoff end."""
        sql = f"update {self.registry.engine.schema_prefix}seriatim_handled set due_us = 0"
        with self.registry.engine.transaction() as session:
            session.run(f"{sql} where status in ('claimed', 'failed')")
        for event in self.events.values():
            event.open = True

    @rule(place=places)
    def defer(self, place: tuple[str, int]) -> None:
        """Keep an event for later."""
        self.registry.defer(self.handler, [delivery(place)])
        if place not in self.events:
            self.events[place] = EventState("blocked")

    @rule(place=places)
    def skip(self, place: tuple[str, int]) -> None:
        """Skip an event if it is unfinished."""
        one = self.state_of(place)
        open_ = one.status in ("claimed", "failed", "blocked", "dead")
        event = EntryFilter(event_id=delivery(place).event_id)
        act_on_one(lambda: self.registry.skip(event, "no need"), there=open_)
        if open_:
            one.status, one.token = "skipped", one.token + 1
        if place in self.events:
            self.advance()

    @rule(place=places)
    def retry(self, place: tuple[str, int]) -> None:
        """Retry a dead letter or failed event."""
        one = self.state_of(place)
        dead = one.status in ("dead", "failed")
        event = EntryFilter(event_id=delivery(place).event_id)
        act_on_one(lambda: self.registry.retry(event), there=dead)
        if dead:
            one.status, one.open, one.attempts = "failed", True, 0

    @rule(place=places)
    def pass_over(self, place: tuple[str, int]) -> None:
        """Report an event as filtered."""
        if self.handler.mode != "strict" or self.state_of(place).status != "new":
            return
        self.registry.pass_over(self.handler, [delivery(place)])
        stream, number = place
        if number == self.last[stream] + 1:
            self.settle(stream, number)
        elif number > self.last[stream]:
            self.events[place] = EventState("passed")

    @rule()
    def list_due(self) -> None:
        """List due events, which advances streams over events passed ahead."""
        self.advance()
        due = {one.event_id for one in self.registry.due(self.handler)}
        for place, one in self.events.items():
            if one.status in ("failed", "claimed") and one.open and place[1] <= 6:
                kept = self.has_event(place)
                assert (delivery(place).event_id in due) == kept, (place, one, due)

    def has_event(self, place: tuple[str, int]) -> bool:
        """Return whether the entry has its event."""
        [entry] = self.registry.entries(EntryFilter(event_id=delivery(place).event_id))
        return entry.event is not None

    def advance(self) -> None:
        """Advance streams over events that were skipped or passed ahead."""
        streams_with_passed = self._streams_with_passed()
        for stream in STREAMS:
            while stream in streams_with_passed and self.state_of(
                (stream, self.last[stream] + 1)
            ).status in (
                "skipped",
                "passed",
            ):
                self.last[stream] += 1

    def _streams_with_passed(self) -> set[str]:
        streams = f"{self.registry.engine.schema_prefix}seriatim_streams"
        sql = f"select stream_id from {streams} where waiting = 1"
        with self.registry.engine.transaction(write=False) as session:
            return {row[0] for row in session.run(sql)}

    # -- invariants

    @invariant()
    def rows_equal_the_model(self) -> None:
        """The rows equal the model."""
        found = {entry.event_id: entry.status for entry in self.registry.entries(EntryFilter())}
        expected = {
            delivery(p).event_id: o.status for p, o in self.events.items() if o.status != "new"
        }
        assert found == expected
        sql = (
            f"select stream_id, last_seq from {self.registry.engine.schema_prefix}seriatim_streams"
        )
        with self.registry.engine.transaction(write=False) as session:
            last = dict(session.run(sql))
        assert {name: last.get(name, 0) for name in STREAMS} == self.last

    @invariant()
    def no_event_is_overtaken(self) -> None:
        """G4: in strict mode no event up to a stream's last number is claimed."""
        if self.handler.mode != "strict":
            return
        for (stream, number), one in self.events.items():
            if number <= self.last[stream]:
                assert one.status != "claimed", (stream, number, one)


@pytest.fixture(params=["sqlite", "postgres"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    """A registry on either database."""
    url = f"sqlite:///{tmp_path}/r.db"
    if request.param == "postgres":
        url = str(request.getfixturevalue("empty_postgres_url"))
    opened = open_registry(url)
    if request.param == "sqlite":  # durability is not tested here
        opened.engine._connection.execute("pragma synchronous = off")  # type: ignore[attr-defined]
    yield opened
    opened.close()


def act_on_one(act: Callable[[], int], *, there: bool) -> None:
    """Apply an operation to one event, which is not found if it is absent (L3)."""
    if there:
        assert act() == 1
    else:
        with pytest.raises(NotFound):
            act()


@pytest.mark.parametrize("mode", ["strict", "latest_wins"])
def test_registry_equals_the_model(registry: Registry, mode: Any) -> None:
    """G1: G2: G3: G4: G5: the registry equals its model after random operations."""
    made = handler("h", effect="keyed", mode=mode, retry=RetryPolicy(attempts=3))(
        lambda _e, _c: None
    )

    class Machine(RegistryMachine):
        pass

    Machine.registry, Machine.handler = registry, made
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=20, stateful_step_count=25, deadline=None)
    )
