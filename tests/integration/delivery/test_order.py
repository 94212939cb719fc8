"""Order within a stream, in the modes strict and latest_wins."""

from __future__ import annotations

import random
import time

import pytest

from seriatim.core.errors import LeaseLost
from seriatim.core.handler import Delivery, Handler
from seriatim.delivery.claims import PassedRange
from seriatim.delivery.registry import Registry
from tests.integration.delivery.support import (
    SHOW,
    claim,
    claim_and_complete,
    make_event,
    make_handler,
    statuses_of,
    verdicts_of,
)

LINE = ("default", *SHOW)


def test_a_later_number_is_blocked(registry: Registry) -> None:
    """G4: an event is blocked until every lower number is done, also unknown ones."""
    mailer = make_handler()

    assert verdicts_of(claim(registry, mailer, make_event(2))) == ["blocked"]
    assert verdicts_of(claim(registry, mailer, make_event(1))) == ["claimed"]
    assert verdicts_of(claim(registry, mailer, make_event(2))) == ["blocked"]


def test_completing_an_event_advances_its_stream(registry: Registry) -> None:
    """G3: marking an event done advances its stream in the same transaction."""
    mailer = make_handler()
    claim_and_complete(registry, mailer, make_event(1))

    assert verdicts_of(claim(registry, mailer, make_event(3), make_event(2))) == [
        "claimed",
        "claimed",
    ]


def test_consecutive_numbers_are_claimed_together(registry: Registry) -> None:
    """G4: consecutive numbers are claimed in one batch, up to the first gap."""
    mailer = make_handler()
    found = claim(registry, mailer, make_event(1), make_event(2), make_event(3), make_event(5))

    assert verdicts_of(found) == ["claimed", "claimed", "claimed", "blocked"]


def test_events_after_one_of_another_owner_are_blocked(registry: Registry) -> None:
    """G4: an event after one that another owner handles is blocked."""
    mailer = make_handler()
    claim(registry, mailer, make_event(1))

    assert verdicts_of(claim(registry, mailer, make_event(1), make_event(2))) == [
        "in_progress",
        "blocked",
    ]


def test_streams_are_independent(registry: Registry) -> None:
    """G4: events of one stream do not block those of another."""
    other = ("show", "s-2")
    found = claim(
        registry,
        make_handler(),
        make_event(2),
        make_event(1, stream=other),
        make_event(1, tenant_id="t"),
    )

    assert verdicts_of(found) == ["blocked", "claimed", "claimed"]


def test_an_old_number_is_stale(registry: Registry) -> None:
    """G3: a number that the stream has passed is stale, also with an unknown event id."""
    mailer = make_handler()
    claim_and_complete(registry, mailer, make_event(1), make_event(2))

    assert verdicts_of(claim(registry, mailer, make_event(1, event_id="forged"))) == ["stale"]


def test_a_stream_that_starts_at_zero(registry: Registry) -> None:
    """G4: the first number of a stream is that of its kind."""
    mailer = make_handler()

    assert verdicts_of(claim(registry, mailer, make_event(1, first_seq=0))) == ["blocked"]
    claim_and_complete(registry, mailer, make_event(0, first_seq=0))
    assert verdicts_of(claim(registry, mailer, make_event(1, first_seq=0))) == ["claimed"]


def test_filtered_events_are_skipped(registry: Registry) -> None:
    """G4: events that the consumer reports as filtered do not block later ones."""
    mailer = make_handler()
    registry.pass_over(mailer, [make_event(1), make_event(2), make_event(4)])

    assert verdicts_of(claim(registry, mailer, make_event(3), make_event(5))) == [
        "claimed",
        "blocked",
    ]
    claims = claim(registry, mailer, make_event(6))
    assert verdicts_of(claims) == ["blocked"]


def test_events_skipped_ahead_are_remembered(registry: Registry) -> None:
    """G4: events skipped early are remembered until the stream reaches them."""
    mailer = make_handler()
    registry.pass_over(mailer, [make_event(2), make_event(3)])
    assert verdicts_of(claim(registry, mailer, make_event(4))) == ["blocked"]
    claim_and_complete(registry, mailer, make_event(1))
    registry.due(mailer)

    assert verdicts_of(claim(registry, mailer, make_event(4))) == ["claimed"]


def test_a_start_in_mid_log(registry: Registry) -> None:
    """G4: a range before the handler's start is skipped only if it follows in order."""
    mailer = make_handler(start=100)
    registry.pass_ranges(mailer, [PassedRange(LINE, 1, 1, 41)])

    assert verdicts_of(claim(registry, mailer, make_event(42))) == ["claimed"]
    registry.pass_ranges(mailer, [PassedRange(LINE, 1, 43, 50)])  # 42 is still open
    assert verdicts_of(claim(registry, mailer, make_event(51))) == ["blocked"]


def test_latest_wins(registry: Registry) -> None:
    """G4: in latest_wins a higher number is claimed while a lower one runs, which ends stale."""
    view = make_handler(mode="latest_wins")
    low = claim(registry, view, make_event(1))
    claim_and_complete(registry, view, make_event(2))
    registry.mark_done(view, low)

    assert statuses_of(registry) == {
        make_event(1).event_id: "stale",
        make_event(2).event_id: "done",
    }
    assert verdicts_of(claim(registry, view, make_event(1, event_id="again"))) == ["stale"]
    assert verdicts_of(claim(registry, view, make_event(9))) == ["claimed"]


def test_expired_owner_does_not_advance_a_stream(
    registry: Registry, expiring_registry: Registry
) -> None:
    """G2: an owner that lost the first event of a run cannot complete the others."""
    mailer = make_handler()
    lost = claim(expiring_registry, mailer, make_event(1), make_event(2), make_event(3))
    time.sleep(0.05)
    [own_claim] = claim(registry, mailer, make_event(1))

    with pytest.raises(LeaseLost):
        expiring_registry.mark_done(mailer, lost)
    assert set(statuses_of(registry).values()) == {"claimed"}
    registry.mark_done(mailer, [own_claim])
    assert verdicts_of(claim(registry, mailer, make_event(2))) == ["claimed"]


def test_later_event_is_not_completed_before_an_earlier_one(registry: Registry) -> None:
    """G4: of events claimed together a later one cannot be completed before an earlier one."""
    mailer = make_handler()
    first, second, third = claim(registry, mailer, make_event(1), make_event(2), make_event(3))
    with pytest.raises(LeaseLost):
        registry.mark_done(mailer, [second])
    registry.mark_done(mailer, [first])
    registry.mark_done(mailer, [second, third])

    assert set(statuses_of(registry).values()) == {"done"}


def test_blocked_events_are_deferred(registry: Registry) -> None:
    """G4: deferred events are due in order once their predecessors are done."""
    mailer = make_handler()
    registry.defer(mailer, [make_event(3), make_event(2)])
    assert registry.due(mailer) == []
    claim_and_complete(registry, mailer, make_event(1))

    assert [one.stream_seq for one in registry.due(mailer)] == [2, 3]
    claim_and_complete(registry, mailer, make_event(2), make_event(3))
    assert registry.due(mailer) == []


def settle(registry: Registry, by: Handler, events: list[Delivery]) -> list[int]:
    """Claim events one by one, defer those that are not due, and return the order of effects."""
    order: list[int] = []

    def consume(some: list[Delivery]) -> None:
        for one in registry.claim_all(by, some):
            if one.claimed:
                order.append(one.delivery.stream_seq or 0)
                registry.mark_done(by, [one])
            elif not one.settled:
                registry.defer(by, [one.delivery])

    for one in events:
        consume([one])
        while due := registry.due(by):
            consume(due)
    return order


@pytest.mark.parametrize("seed", range(4))
def test_shuffled_events_in_strict(registry: Registry, seed: int) -> None:
    """G4: 003 §6.4: shuffled, repeated events in strict mode have effects once and in order."""
    chance = random.Random(seed)
    events = [make_event(number) for number in range(1, 25)] * 2
    chance.shuffle(events)

    assert settle(registry, make_handler(), events) == list(range(1, 25))


@pytest.mark.parametrize("seed", range(4))
def test_shuffled_events_in_latest_wins(registry: Registry, seed: int) -> None:
    """G4: 003 §6.4: shuffled events in latest_wins have rising effects up to the highest."""
    chance = random.Random(seed)
    events = [make_event(number) for number in range(1, 25)] * 2
    chance.shuffle(events)
    order = settle(registry, make_handler(mode="latest_wins"), events)

    assert order == sorted(set(order))
    assert order[-1] == 24
