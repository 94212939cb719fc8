"""Claims on SQLite and Postgres: one owner, a lease, and a fencing token."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import seriatim
from seriatim import NewEvent
from seriatim.config.delivery import RegistrySettings
from seriatim.core.errors import Conflict, InvalidArgument, LeaseLost, NotFound
from seriatim.core.handler import Delivery
from seriatim.delivery.registry import Registry
from seriatim.factory import open_registry
from tests.integration.delivery.support import (
    claim,
    claim_and_complete,
    make_event,
    make_handler,
    statuses_of,
    verdicts_of,
)


def test_an_event_is_claimed_once(registry: Registry) -> None:
    """G1: an event is claimed once; later claims are in_progress, then duplicate_done."""
    mailer = make_handler()
    [first] = claim(registry, mailer, make_event(1))
    [second] = claim(registry, mailer, make_event(1))
    registry.mark_done(mailer, [first])
    [third] = claim(registry, mailer, make_event(1))

    assert verdicts_of([first, second, third]) == ["claimed", "in_progress", "duplicate_done"]
    assert (first.token, first.attempt) == (1, 1)


def test_handlers_are_independent(registry: Registry) -> None:
    """C6: two handlers each claim one event, and another tenant's event of the same id."""
    claim_and_complete(registry, make_handler("mailer"), make_event(1))

    assert verdicts_of(claim(registry, make_handler("biller"), make_event(1))) == ["claimed"]
    assert verdicts_of(
        claim(registry, make_handler("mailer"), make_event(1, tenant_id="other"))
    ) == ["claimed"]


def test_claims_are_durable(registry_at: str) -> None:
    """G1: a claim is known to the next process that opens the registry."""
    for expected in ("claimed", "in_progress"):
        opened = open_registry(registry_at)
        assert verdicts_of(claim(opened, make_handler(), make_event(1))) == [expected]
        opened.close()


def test_an_event_twice_in_a_batch(registry: Registry) -> None:
    """G1: an event that occurs twice in a batch is claimed once."""
    plain = make_event(None, event_id="a")

    assert verdicts_of(claim(registry, make_handler(), plain, plain)) == ["claimed", "in_progress"]


def test_concurrent_consumers_claim_each_event_once(registry_at: str, registry: Registry) -> None:
    """G1: of concurrent consumers of the same events, exactly one claims each."""
    mailer = make_handler()
    events = [make_event(None, event_id=f"e{number}", position=number) for number in range(60)]
    barrier = threading.Barrier(6)

    def consume(_: int) -> list[str]:
        opened = open_registry(registry_at)
        barrier.wait()
        claims = [claim(opened, mailer, *events[start : start + 10]) for start in range(0, 60, 10)]
        opened.close()
        return [one.delivery.event_id for some in claims for one in some if one.claimed]

    with ThreadPoolExecutor(6) as pool:
        won = [event_id for one in pool.map(consume, range(6)) for event_id in one]

    assert sorted(won) == sorted(event.event_id for event in events)


def test_an_expired_lease_can_be_claimed(registry: Registry, expiring_registry: Registry) -> None:
    """G2: an expired claim is given to another owner with a higher token; the first has lost it."""
    mailer = make_handler()
    [lost] = claim(expiring_registry, mailer, make_event(1))
    time.sleep(0.05)
    [taken] = claim(registry, mailer, make_event(1))

    assert taken.claimed
    assert (taken.token, taken.attempt) == (lost.token + 1, 2)
    with pytest.raises(LeaseLost):
        expiring_registry.heartbeat(mailer, [lost])
    with pytest.raises(LeaseLost):
        expiring_registry.mark_done(mailer, [lost])
    with pytest.raises(LeaseLost):
        expiring_registry.mark_failed(mailer, lost, "late", pause_s=0)
    with pytest.raises(LeaseLost):
        expiring_registry.release(mailer, [lost])
    registry.mark_done(mailer, [taken])
    assert statuses_of(registry) == {taken.delivery.event_id: "done"}


def test_an_expired_lease_stays_until_claimed(expiring_registry: Registry) -> None:
    """G2: an expired claim stays with its owner until another claims it."""
    mailer = make_handler()
    claims = claim(expiring_registry, mailer, make_event(1))
    time.sleep(0.05)
    expiring_registry.mark_done(mailer, claims)

    assert statuses_of(expiring_registry) == {make_event(1).event_id: "done"}


def test_a_heartbeat_renews_the_lease(registry: Registry, expiring_registry: Registry) -> None:
    """G2: a heartbeat renews the lease of a claim."""
    mailer = make_handler()
    claims = claim(expiring_registry, mailer, make_event(1))
    registry.heartbeat(mailer, claims)  # for 900 s
    time.sleep(0.05)

    assert verdicts_of(claim(registry, mailer, make_event(1))) == ["in_progress"]


def test_a_failed_claim_cannot_be_completed(registry: Registry) -> None:
    """G2: a claim that was marked failed cannot be marked done."""
    mailer = make_handler()
    claims = claim(registry, mailer, make_event(1))
    registry.mark_failed(mailer, claims[0], "no", pause_s=60)

    with pytest.raises(LeaseLost):
        registry.mark_done(mailer, claims)
    assert verdicts_of(claim(registry, mailer, make_event(1))) == ["waiting"]


def test_mark_done_can_be_repeated(registry: Registry) -> None:
    """G2: marking a claim done twice succeeds, as after a lost response."""
    mailer = make_handler()
    claims = claim(registry, mailer, make_event(1))
    registry.mark_done(mailer, claims)
    registry.mark_done(mailer, claims)

    assert statuses_of(registry) == {make_event(1).event_id: "done"}


@pytest.mark.parametrize(
    "ids",
    [
        ["Order-1", "order-1", "ORDER-1"],
        ["a b", "a  b", "a\u00a0b"],
        ["a/b", "a:b", "a%2Fb", "a|b", "a\\b", "a''b", 'a"b', "{a}", "a,b", "NULL", "null"],
        ["caf\u00e9", "cafe\u0301"],
        ["\U0001f600", "\U0001f601", "\\u0001"],
    ],
    ids=["case", "space", "separators", "forms", "emoji"],
)
def test_similar_ids_are_different(registry: Registry, ids: list[str]) -> None:
    """G1: 003 §6.7: similar ids of events, streams, tenants and handlers are different."""
    mailer = make_handler()
    events = [make_event(None, event_id=id_) for id_ in ids]
    streams = [make_event(1, stream=("show", one), event_id=f"s-{n}") for n, one in enumerate(ids)]
    tenants = [make_event(None, event_id="same", tenant_id=id_) for id_ in ids]
    everything = [*events, *streams, *tenants]

    claim_and_complete(registry, mailer, *everything)
    for one in ids:
        claim_and_complete(registry, make_handler(one), make_event(1))

    assert verdicts_of(claim(registry, mailer, *everything)) == ["duplicate_done"] * len(everything)


def test_a_handler_has_one_declaration(registry: Registry) -> None:
    """G4: a handler with another filter under a known name is refused unless it replaces it."""
    registry.declare(make_handler(events=["a.*"]))
    registry.declare(make_handler(events=["a.*"]))

    with pytest.raises(Conflict, match="take another name"):
        registry.declare(make_handler(events=["b.*"]))
    registry.declare(make_handler(events=["b.*"]), replace=True)
    assert [handler.declaration["events"] for handler in registry.handlers()] == [["b.*"]]


def test_heartbeat_interval_must_be_below_the_lease() -> None:
    """H4: a heartbeat that is not below the lease is refused at start."""
    with pytest.raises(InvalidArgument, match="above 0 and shorter than lease_s"):
        RegistrySettings(lease_s=30, heartbeat_s=30)


def test_only_the_database_clock_counts(
    registry_at: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2: a worker whose own clock is a day ahead takes no claim of another."""
    mailer = make_handler()
    claim(registry, mailer, make_event(1))
    day = 86_400
    monkeypatch.setattr(time, "time", lambda: 1_900_000_000.0 + day)
    monkeypatch.setattr(time, "time_ns", lambda: (1_900_000_000 + day) * 10**9)
    ahead = open_registry(registry_at)

    assert verdicts_of(claim(ahead, mailer, make_event(1))) == ["in_progress"]
    ahead.close()


def test_events_of_one_command_are_claimed_separately(tmp_path: Path, registry: Registry) -> None:
    """C6: two events of one command share its idempotency key, and both are claimed."""
    with seriatim.open("memory:") as log:
        aggregate = ("order", "o-1")
        log.append(
            [NewEvent("order.placed", stream=aggregate), NewEvent("order.paid", stream=aggregate)],
            idempotency_key="command-7",
        )
        events = [Delivery.of(record, log=log.identity()) for record in log.read()]

    assert verdicts_of(claim(registry, make_handler(), *events)) == ["claimed", "claimed"]


async def test_claims_in_asyncio(registry: Registry) -> None:
    """G1: awaited claims have the same verdicts; a transactional handler is refused."""
    mailer = make_handler()
    async with registry.aio.claim(mailer, make_event(1)) as held:
        assert (bool(held), held.attempt) == (True, 1)
    async with registry.aio.claim(mailer, make_event(1)) as held:
        assert held.verdict == "duplicate_done"
    claims = await registry.aio.claim_all(mailer, [make_event(2), make_event(3)])
    await registry.aio.mark_done(mailer, claims)

    assert set(statuses_of(registry).values()) == {"done"}
    with pytest.raises(InvalidArgument, match="thread's own connection"):
        registry.aio.claim(make_handler(effect="transactional"), make_event(4))


def test_missing_registry_is_not_created_by_reads(registry_at: str) -> None:
    """G1: a read creates no registry; a disabled one is reported."""
    with pytest.raises(NotFound, match="no registry"):
        open_registry(registry_at, create=False)
    off = open_registry(registry_at, RegistrySettings(enabled=False))
    with pytest.raises(NotFound, match="no registry"):
        open_registry(registry_at, create=False)
    assert verdicts_of(
        claim(off, make_handler(), make_event(1)) + claim(off, make_handler(), make_event(1))
    ) == [
        "claimed",
        "claimed",
    ]


def test_a_claim_takes_two_statements(registry: Registry) -> None:
    """G1: claiming an event and completing it take one statement each."""
    runs: list[str] = []
    mailer = make_handler()
    original = registry.engine.autocommit

    def counted() -> object:
        runs.append("one")
        return original()

    registry.engine.autocommit = counted  # type: ignore[method-assign,assignment]
    registry.mark_done(mailer, registry.claim_all(mailer, [make_event(1)]))

    assert len(runs) == 2


def test_events_without_a_stream_are_only_deduplicated(registry: Registry) -> None:
    """G4: events without a stream are claimed in any order, each once."""
    mailer = make_handler()
    one, two = (Delivery(event_id=name, position=number) for number, name in enumerate("ab"))

    assert verdicts_of(claim(registry, mailer, two)) == ["claimed"]
    assert verdicts_of(claim(registry, mailer, one, two)) == ["claimed", "in_progress"]
