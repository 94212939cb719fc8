"""The handler loop and the claim context manager on both databases."""

from __future__ import annotations

import logging
import random
import time
from typing import Any

import pytest

from seriatim.config.delivery import RegistrySettings
from seriatim.core.errors import BackendFailure, Conflict, LeaseLost
from seriatim.core.handler import Delivery
from seriatim.delivery.claim_context import HandlerContext, effect_key
from seriatim.delivery.claims import PassedRange
from seriatim.delivery.entries import EntryFilter
from seriatim.delivery.handler_loop import HandlerLoop
from seriatim.delivery.registry import Registry
from seriatim.delivery.registry_database import OutageRetry
from seriatim.factory import open_registry
from tests.integration.delivery.support import QUICK, SHOW, make_event, make_handler, statuses_of

EFFECTS = ["transactional", "keyed", "unsafe"]


class Target:
    """Counts effects, in memory or in a table."""

    def __init__(self, registry: Registry, effect: str) -> None:
        self.effect = effect
        self.poison: set[int] = set()
        self._registry = registry
        self._seen: list[int] = []
        with registry.engine.transaction() as session:
            session.run(
                f"create table if not exists {registry.engine.schema_prefix}effects (n integer)"
            )

    def run(self, seen: Any, context: HandlerContext) -> None:
        """Apply the effect of an event."""
        if seen["n"] in self.poison:
            raise ValueError("poison")
        if self.effect == "transactional":
            sql = f"insert into {self._registry.engine.schema_prefix}effects values ({seen['n']})"
            context.connection.execute(sql)
        else:
            self._seen.append(seen["n"])

    @property
    def seen(self) -> list[int]:
        """Return the applied effects, in order."""
        if self.effect != "transactional":
            return self._seen
        with self._registry.engine.transaction(write=False) as session:
            return [
                row[0]
                for row in session.run(
                    f"select n from {self._registry.engine.schema_prefix}effects"
                )
            ]


@pytest.fixture(params=EFFECTS)
def target(request: pytest.FixtureRequest, registry: Registry) -> Target:
    """A target of each kind of effect."""
    return Target(registry, request.param)


def make_loop(registry: Registry, target: Target, **parts: Any) -> HandlerLoop:
    """Make a loop whose handler counts effects."""
    starts = parts.pop("starts", None)
    mailer = make_handler(effect=target.effect, run=target.run, retry=QUICK, **parts)
    registry.declare(mailer, replace=True)
    return HandlerLoop(registry, mailer, start_lookup=starts, chunk=10)


def handle_due(loop: HandlerLoop, registry: Registry, seconds: float = 5) -> None:
    """Handle due events until none remains that will become due."""
    until = time.monotonic() + seconds
    while any(count.status in ("failed", "blocked") for count in registry.counts()):
        due = registry.due(loop.handler)
        loop.handle(due)
        if not due and not any(count.status == "failed" for count in registry.counts()):
            return
        assert time.monotonic() < until
        time.sleep(0.005)


def test_effects_happen_once_and_in_order(registry: Registry, target: Target) -> None:
    """G7: repeated events have one effect each, in the order of their stream."""
    loop = make_loop(registry, target)
    events = [make_event(number) for number in range(1, 26)]
    first, second = loop.handle(events), loop.handle(events)

    assert target.seen == list(range(1, 26))
    assert (first.done, second.duplicate, second.done) == (25, 25, 0)


def test_a_poison_event_blocks_only_its_stream(registry: Registry, target: Target) -> None:
    """G5: after its attempts a poison event is dead; its stream waits, others continue."""
    target.poison = {1}
    loop = make_loop(registry, target)
    others = [
        make_event(number, stream=("show", "s-2"), event={"n": 100 + number}) for number in (1, 2)
    ]
    counts = loop.handle([make_event(1), make_event(2), *others, make_event(3)])
    handle_due(loop, registry)

    assert (counts.failed, counts.done) == (1, 2)
    assert target.seen == [101, 102]
    [letter] = registry.entries(EntryFilter(status="dead"))
    assert (letter.event_id, letter.attempts) == (make_event(1).event_id, 3)
    target.poison = set()
    registry.retry(EntryFilter(status="dead"))
    handle_due(loop, registry)
    assert target.seen == [101, 102, 1, 2, 3]


def test_poison_is_skipped(registry: Registry, target: Target) -> None:
    """G5: with on_poison=skip later events continue after the attempts of a poison event."""
    target.poison = {2}
    loop = make_loop(registry, target, on_poison="skip")
    loop.handle([make_event(1), make_event(2), make_event(3)])
    handle_due(loop, registry)

    assert target.seen == [1, 3]
    assert statuses_of(registry, status="dead") == {make_event(2).event_id: "dead"}


def test_poison_stops_the_handler(registry: Registry, target: Target) -> None:
    """G5: with on_poison=stop nothing is handled until an operator intervenes."""
    target.poison = {1}
    loop = make_loop(registry, target, on_poison="stop")

    def tried() -> None:
        for _ in range(50):
            loop.handle([make_event(1), make_event(2)])
            time.sleep(0.01)

    with pytest.raises(Conflict, match="stopped"):
        tried()
    with pytest.raises(Conflict, match="poison"):
        loop.handle([make_event(9, stream=("show", "s-2"))])

    assert target.seen == []
    registry.skip(EntryFilter(status="dead"), "bad data")
    handle_due(loop, registry)
    loop.handle([make_event(2)])
    assert target.seen == [2]


def test_filtered_events_do_not_block_a_stream(registry: Registry, target: Target) -> None:
    """G4: events that a handler filters out do not block it."""
    loop = make_loop(registry, target, events=["seat.*"])
    kinds = ["seat.taken", "note.made", "seat.freed", "note.made", "seat.taken"]
    events = [make_event(number, event_type=kind) for number, kind in enumerate(kinds, start=1)]

    assert loop.handle(events[1:]).kept == 2
    assert loop.handle(events[:1]).done == 1
    handle_due(loop, registry)
    assert target.seen == [1, 3, 5]


@pytest.mark.parametrize("seed", range(3))
def test_shuffled_events_with_a_filter_and_a_start(
    registry: Registry, target: Target, seed: int
) -> None:
    """G4: 003 §6.4: shuffled, repeated and filtered events from mid-log have effects in order."""
    first = 7
    events = [
        make_event(number, event_type="seat.taken" if number % 3 else "note.made")
        for number in range(first, 30)
    ] * 2
    random.Random(seed).shuffle(events)

    def starts(_handler: Any, _blocked: Any) -> list[PassedRange]:
        return [PassedRange(("default", *SHOW), 1, 1, first - 1)]

    loop = make_loop(registry, target, events=["seat.*"], start=first - 1, starts=starts)
    for start in range(0, len(events), 4):
        loop.handle(events[start : start + 4])
    handle_due(loop, registry)

    assert target.seen == [number for number in range(first, 30) if number % 3]


def test_start_ranges_are_looked_up_once(registry: Registry, target: Target) -> None:
    """G4: a handler that starts in mid-log looks up earlier numbers once per stream."""
    requested: list[int | None] = []

    def starts(_handler: Any, blocked: Any) -> list[PassedRange]:
        requested.extend(claim.delivery.stream_seq for claim in blocked)
        return [PassedRange(("default", *SHOW), 1, 1, 4)]

    loop = make_loop(registry, target, start=4, starts=starts)
    loop.handle([make_event(5), make_event(6)])
    loop.handle([make_event(7)])

    assert target.seen == [5, 6, 7]
    assert requested[0] == 5
    assert 7 not in requested


def test_latest_wins_in_the_loop(registry: Registry, target: Target) -> None:
    """G4: in latest_wins an outdated event is stale and has no effect."""
    loop = make_loop(registry, target, mode="latest_wins")
    loop.handle([make_event(3)])
    counts = loop.handle([make_event(1), make_event(2), make_event(4)])

    assert target.seen == [3, 4]
    assert counts.stale == 2


def test_an_async_handler(registry: Registry) -> None:
    """G7: a loop awaits an async handler."""
    seen: list[int] = []

    async def run(given: Any, _context: HandlerContext) -> None:
        seen.append(given["n"])

    HandlerLoop(registry, make_handler(run=run)).handle([make_event(1), make_event(2)])

    assert seen == [1, 2]


def test_a_lost_lease_rolls_back_the_effect(registry_at: str, registry: Registry) -> None:
    """G2: the transaction of an owner that lost its claim is rolled back."""
    slow = open_registry(registry_at, RegistrySettings(lease_s=0.03, heartbeat_s=0.029))
    target = Target(registry, "transactional")
    mailer = make_handler(effect="transactional")

    def held_too_long() -> None:
        with slow.claim(mailer, make_event(1)) as held:
            target.run({"n": 1}, held.context)  # type: ignore[arg-type]
            take_claim(slow, registry)

    with pytest.raises(LeaseLost):
        held_too_long()
    slow.close()

    assert target.seen == []


def take_claim(slow: Registry, registry: Registry) -> None:
    """Give the claim to another owner, in the way that the database allows."""
    if slow.engine.schema_prefix:  # Postgres: another connection takes it
        time.sleep(0.05)
        sql = f"update {slow.engine.schema_prefix}seriatim_handled set token = token + 1"
        with registry.engine.transaction() as session:
            session.run(sql)
    else:  # SQLite: one writer, so in the same transaction
        sql = "update seriatim_handled set token = token + 1"
        with slow.engine._lock:  # type: ignore[attr-defined]
            slow.engine._connection.execute(sql)  # type: ignore[attr-defined]


def test_heartbeats_during_a_long_effect(registry_at: str, registry: Registry) -> None:
    """G2: an effect that takes longer than a lease keeps it by heartbeats."""
    slow = open_registry(registry_at, RegistrySettings(lease_s=0.3, heartbeat_s=0.05))
    mailer = make_handler()
    with slow.claim(mailer, make_event(1)) as held:
        assert held
        time.sleep(0.7)
        held.check()
        [other] = registry.claim_all(mailer, [make_event(1)])
        assert other.verdict == "in_progress"
    slow.close()

    assert statuses_of(registry) == {make_event(1).event_id: "done"}


def test_a_claim_block_marks_its_event(registry: Registry) -> None:
    """G1: a claim block marks its event done at its end, and failed on an exception."""
    mailer = make_handler(retry=QUICK)

    def failing() -> None:
        with registry.claim(mailer, make_event(1)) as held:
            assert (bool(held), held.attempt) == (True, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    time.sleep(0.03)
    with registry.claim(mailer, make_event(1)) as held:
        assert (bool(held), held.attempt, held.key) == (True, 2, effect_key(make_event(1)))
    with registry.claim(mailer, make_event(1)) as held:
        assert not held
        assert held.verdict == "duplicate_done"
    assert held.connection is None


def test_user_errors_propagate_unchanged(registry: Registry) -> None:
    """G7: an error of a transactional block propagates, and its writes are rolled back."""
    target = Target(registry, "transactional")
    mailer = make_handler(effect="transactional", retry=QUICK)

    def failing() -> None:
        with registry.claim(mailer, make_event(1)) as held:
            target.run({"n": 1}, held.context)  # type: ignore[arg-type]
            held.connection.execute("select nonsense from nowhere")

    with pytest.raises(Exception, match="nowhere") as raised:
        failing()
    assert not isinstance(raised.value, BackendFailure)
    assert target.seen == []
    assert statuses_of(registry) == {make_event(1).event_id: "failed"}


def test_effect_keys_are_stable_and_unique() -> None:
    """G7: effect keys of different tenants and events differ."""
    pairs = [("a", "b/c"), ("a/b", "c"), ("a%2Fb", "c"), ("A", "b/c")]
    keys = {effect_key(Delivery(tenant_id=tenant, event_id=one)) for tenant, one in pairs}

    assert len(keys) == len(pairs)


def test_the_pause_policy_retries_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    """G6: `pause` retries until the registry responds, and logs the outage and its end once."""
    answers = iter([BackendFailure("down"), BackendFailure("down"), None])
    waiting: list[bool] = []
    outage = OutageRetry("pause")

    def act() -> str:
        waiting.append(outage.since is not None)
        if error := next(answers):
            raise error
        return "done"

    with caplog.at_level(logging.WARNING, logger="seriatim"):
        assert outage.run(act) == "done"
    assert waiting == [False, True, True]
    assert [record.message.split(",")[0] for record in caplog.records] == [
        "the registry cannot be reached",
        "the registry is back after 0.3 s",
    ]


@pytest.mark.parametrize("policy", ["fail_fast", "dlq"])
def test_other_outages_are_raised(policy: Any) -> None:
    """G6: other policies raise an outage at once; `pause` raises permanent errors."""

    def act(*, retryable: bool) -> None:
        raise BackendFailure("down", retryable=retryable)

    with pytest.raises(BackendFailure):
        OutageRetry(policy).run(lambda: act(retryable=True))
    with pytest.raises(BackendFailure):
        OutageRetry("pause").run(lambda: act(retryable=False))
