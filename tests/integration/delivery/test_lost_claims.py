"""Claims that are lost during their effect, or to a concurrent consumer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from seriatim.config.delivery import RegistrySettings
from seriatim.core.errors import LeaseLost
from seriatim.core.handler import Handler
from seriatim.delivery.claims import CANDIDATE_TYPES, Claim, encode_candidates
from seriatim.delivery.entries import EntryFilter
from seriatim.delivery.handler_loop import HandlerLoop
from seriatim.delivery.registry import Registry
from seriatim.factory import open_registry
from tests.faults.support import wait_until
from tests.integration.delivery.support import (
    claim,
    make_event,
    make_handler,
    statuses_of,
    verdicts_of,
)

PATIENCE_S = 20.0


@pytest.fixture
def polling_registry(registry_at: str) -> Iterator[Registry]:
    """A registry with long leases and a heartbeat every 10 ms."""
    opened = open_registry(registry_at, RegistrySettings(lease_s=900.0, heartbeat_s=0.01))
    yield opened
    opened.close()


def lose_claims(registry: Registry, by: Handler) -> None:
    """Take all claims of a handler from their owners by skipping their events."""
    assert registry.skip(EntryFilter(handler=by.name), reason="lost on purpose")


def check_until_lost(check: Callable[[], None]) -> None:
    """Call a check repeatedly until it raises or the time is over."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        check()
        time.sleep(0.005)


def test_a_handler_detects_a_lost_claim(polling_registry: Registry, registry: Registry) -> None:
    """G2: `context.check()` raises once the claim is lost, and ends the effect."""
    reached: list[str] = []

    def effect(_event: Any, context: Any) -> None:
        context.check()  # still ours
        reached.append("begun")
        lose_claims(registry, by)
        check_until_lost(context.check)
        reached.append("gone on")

    by = make_handler(run=effect)
    registry.declare(by)
    counts = HandlerLoop(polling_registry, by).handle([make_event(1)])

    assert reached == ["begun"]
    assert (counts.done, counts.kept) == (0, 1)
    assert statuses_of(registry) == {make_event(1).event_id: "skipped"}


def test_a_claim_block_detects_a_lost_claim(polling_registry: Registry, registry: Registry) -> None:
    """G2: `check()` of a claim block raises once the claim is lost, and nothing is marked done."""
    by = make_handler()
    registry.declare(by)
    reached: list[str] = []

    def hold() -> None:
        with polling_registry.claim(by, make_event(1)) as held:
            held.check()
            reached.append("begun")
            lose_claims(registry, by)
            check_until_lost(held.check)
            reached.append("gone on")

    with pytest.raises(LeaseLost):
        hold()
    assert reached == ["begun"]
    assert statuses_of(registry) == {make_event(1).event_id: "skipped"}


def test_an_interrupt_is_not_hidden_by_a_lost_claim(
    polling_registry: Registry, registry: Registry
) -> None:
    """G2: KeyboardInterrupt in a claim block propagates, also when the claim is lost."""
    by = make_handler()
    registry.declare(by)

    def hold() -> None:
        with polling_registry.claim(by, make_event(1)):
            lose_claims(registry, by)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hold()


class TakenOverRegistry(Registry):
    """A registry whose claims end at once and are taken by another consumer, before any effect."""

    def claim_all(self, handler: Handler, deliveries: Any, passing: Any = ()) -> list[Claim]:
        """Claim events, and lose the claims."""
        claims = super().claim_all(handler, deliveries, passing)
        with self.engine.transaction() as session:
            session.run(f"update {self.engine.schema_prefix}seriatim_handled set due_us = 0")
        other = self.clone()
        assert verdicts_of(other.claim_all(handler, deliveries)) == ["claimed"] * len(deliveries)
        other.close()
        return claims


def test_events_of_lost_claims_are_stored_for_their_owner(registry: Registry) -> None:
    """G2, G10: each event of a lost batch is stored, so that it is due if its new owner dies."""
    by = make_handler(effect="transactional")
    registry.declare(by)
    taken_over = TakenOverRegistry(registry.engine, registry.settings)
    counts = HandlerLoop(taken_over, by).handle([make_event(1), make_event(2), make_event(3)])

    assert (counts.done, counts.kept) == (0, 3)
    entries = registry.entries(EntryFilter(handler=by.name))
    assert [(entry.status, entry.event) for entry in entries] == [
        ("claimed", {"n": seq}) for seq in (1, 2, 3)
    ]


@pytest.mark.parametrize("effect", ["keyed", "transactional"])
def test_a_stopped_consumer_stores_events_that_it_has_lost(
    registry: Registry, expiring_registry: Registry, effect: str
) -> None:
    """G10: an event whose claim was lost before its release is stored for its new owner.

    The consumer moves its cursor past it, and the new owner may die without having stored it.
    """
    stopped = threading.Event()
    first, second = make_event(1), make_event(1, stream=("show", "s-2"))

    def run(_event: Any, _context: Any) -> None:
        stopped.set()

    class SuspendedLoop(HandlerLoop):
        """A consumer that is suspended after its first effect, for longer than the lease."""

        def _release(self, claims: Any) -> Any:
            with registry.engine.transaction() as session:
                name = f"{registry.engine.schema_prefix}seriatim_handled"
                session.run(f"update {name} set due_us = 0 where stream_id = 's-2'")
            assert verdicts_of(claim(expiring_registry, by, second)) == ["claimed"]
            return super()._release(claims)

    by = make_handler(run=run, effect=effect)
    registry.declare(by)
    counts = SuspendedLoop(registry, by, stopped=stopped.is_set).handle([first, second])

    assert counts.kept == (1 if effect == "keyed" else 2)
    [lost] = registry.entries(EntryFilter(stream_id="s-2"))
    assert (lost.status, lost.event) == ("claimed", {"n": 1})


def waits_for_a_lock(url: str) -> bool:
    """Return whether a session of a database waits for a lock."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and wait_event_type = 'Lock'"
        ).fetchone()
    return found is not None and found[0] > 0


def test_claims_after_a_lost_one_are_released(empty_postgres_url: str) -> None:
    """G4: a strict consumer keeps no claim after an event that another consumer has just claimed.

    The other consumer's claim of event 1 is uncommitted while events 1 to 3 are claimed: the
    statement does not see it and waits for it. So 2 and 3 look free when they are evaluated.
    """
    registry, other = open_registry(empty_postgres_url), open_registry(empty_postgres_url)
    by = make_handler()
    registry.declare(by)
    events = [make_event(1), make_event(2), make_event(3)]
    found: list[str] = []
    asking = threading.Thread(
        target=lambda: found.extend(verdicts_of(claim(registry, by, *events))), daemon=True
    )
    with other.engine.transaction() as session:
        values = other._database.handler_values(by) | {"owner": "other"}
        won = other._database.run_rows_in(
            session, "claim_events", CANDIDATE_TYPES, encode_candidates(events[:1], ()), values
        )
        asking.start()
        wait_until(lambda: waits_for_a_lock(empty_postgres_url), "the claim waits")
    asking.join(30)

    assert len(won) == 1
    assert found == ["in_progress", "blocked", "blocked"]
    assert statuses_of(registry)[make_event(1).event_id] == "claimed"
    assert "claimed" not in [statuses_of(registry).get(event.event_id) for event in events[1:]]
    for one in (registry, other):
        one.close()
