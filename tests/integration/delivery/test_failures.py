"""Failures: attempts and backoff, dead letters, poison events, and operations on them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from seriatim.core.errors import InvalidArgument, NotFound
from seriatim.core.handler import RetryPolicy
from seriatim.delivery.claim_context import record_failure
from seriatim.delivery.claims import Claim
from seriatim.delivery.entries import EntryFilter
from seriatim.delivery.registry import Registry
from tests.integration.delivery.support import (
    QUICK,
    claim,
    claim_and_complete,
    make_event,
    make_handler,
    statuses_of,
    verdicts_of,
)


def fail_event(registry: Registry, by: Any, *, error: Exception | None = None) -> Claim:
    """Claim the first event when it is due, and fail it."""
    until = time.monotonic() + 10
    while True:
        [found] = claim(registry, by, make_event(1))
        if found.claimed:
            record_failure(registry, by, found, error or ValueError("no seat"))
            return found
        assert found.verdict == "waiting", found
        assert time.monotonic() < until
        time.sleep(0.005)


def exhaust_attempts(registry: Registry, by: Any) -> None:
    """Let the first event become a dead letter."""
    for _ in range(by.retry.attempts):
        fail_event(registry, by)


def test_the_backoff_of_a_retry_policy() -> None:
    """G5: the delay grows by a factor up to a cap, reduced by a random part."""
    policy = RetryPolicy(base_s=1, factor=2, cap_s=10, jitter=0.5)

    assert [policy.pause_s(n, 0.0) for n in (1, 2, 3, 4, 5, 5000)] == [1, 2, 4, 8, 10, 10]
    assert policy.pause_s(3, 0.5) == 3.0
    default = RetryPolicy()
    assert (default.attempts, default.base_s, default.factor, default.cap_s) == (5, 1, 2, 60)


def test_a_failed_event_backs_off(registry: Registry) -> None:
    """G5: after a failure the event backs off, by the database's clock."""
    mailer = make_handler(retry=RetryPolicy(base_s=3600, cap_s=3600))
    fail_event(registry, mailer)
    [entry] = registry.entries(EntryFilter(status="failed"))

    assert verdicts_of(claim(registry, mailer, make_event(1), make_event(2))) == [
        "waiting",
        "blocked",
    ]
    assert (entry.attempts, entry.error) == (1, "ValueError: no seat")
    assert entry.due_at is not None
    assert entry.due_at > entry.updated_at


def test_an_event_is_dead_after_its_attempts(registry: Registry) -> None:
    """G5: after the attempts of its policy an event is a dead letter with error and payload."""
    mailer = make_handler(retry=QUICK)
    tokens = [fail_event(registry, mailer).token for _ in range(3)]
    [entry] = registry.entries(EntryFilter(status="dead"))

    assert tokens == [1, 2, 3]
    assert (entry.attempts, entry.error, entry.event) == (3, "ValueError: no seat", {"n": 1})
    assert (entry.handler, entry.position, entry.stream_seq) == ("mailer", 1, 1)
    assert entry.first_at < entry.updated_at
    assert verdicts_of(claim(registry, mailer, make_event(1))) == ["dead"]


def test_a_final_error_makes_a_dead_letter(registry: Registry) -> None:
    """G5: an error that the policy calls final makes a dead letter at once."""
    fail_event(registry, make_handler(retry=RetryPolicy(final=(KeyError,))), error=KeyError("seat"))

    assert statuses_of(registry) == {make_event(1).event_id: "dead"}


def test_expired_attempts_are_counted(registry: Registry, expiring_registry: Registry) -> None:
    """G5: attempts whose lease expired count, and make a dead letter."""
    mailer = make_handler(retry=QUICK)
    for _ in range(3):
        assert verdicts_of(claim(expiring_registry, mailer, make_event(1))) == ["claimed"]
        time.sleep(0.05)

    assert verdicts_of(claim(registry, mailer, make_event(1))) == ["dead"]
    [entry] = registry.entries(EntryFilter(status="dead"))
    assert "the lease expired in every attempt" in entry.error
    assert entry.event == {"n": 1}


def test_secrets_in_errors_are_not_stored(registry: Registry) -> None:
    """K: an error message that resembles a secret is not stored."""
    token = "ghp_" + "a1B2" * 9
    fail_event(registry, make_handler(), error=ValueError(f"the server refused {token}"))
    [entry] = registry.entries(EntryFilter())

    assert token not in entry.error
    assert entry.error.startswith("ValueError")


@pytest.mark.parametrize(
    ("on_poison", "next_verdict"), [("park", "blocked"), ("skip", "claimed"), ("stop", "blocked")]
)
def test_poison_policies(registry: Registry, on_poison: str, next_verdict: str) -> None:
    """G5: a dead letter parks its stream, is skipped, or stops the handler."""
    mailer = make_handler(retry=QUICK, on_poison=on_poison)
    registry.declare(mailer)
    exhaust_attempts(registry, mailer)
    other = make_event(1, stream=("show", "s-2"))

    assert verdicts_of(claim(registry, mailer, make_event(2))) == [next_verdict]
    assert verdicts_of(claim(registry, mailer, other)) == [
        "blocked" if on_poison == "stop" else "claimed"
    ]
    reason = registry.inactive_reason(mailer)
    assert (reason is not None and "no seat" in reason) == (on_poison == "stop")


@pytest.mark.parametrize("on_poison", ["park", "skip", "stop"])
def test_an_operator_retries_a_dead_letter(registry: Registry, on_poison: str) -> None:
    """G5: a dead letter that an operator retries is claimed again, also after later events."""
    mailer = make_handler(retry=QUICK, on_poison=on_poison)
    registry.declare(mailer)
    exhaust_attempts(registry, mailer)
    if on_poison == "skip":
        claim_and_complete(registry, mailer, make_event(2))

    assert registry.retry(EntryFilter(handler="mailer", event_id=make_event(1).event_id)) == 1
    assert registry.inactive_reason(mailer) is None
    [kept] = registry.due(mailer)
    [again] = claim(registry, mailer, kept)
    assert (again.verdict, again.attempt) == ("claimed", 1)
    registry.mark_done(mailer, [again])
    expected = "duplicate_done" if on_poison == "skip" else "claimed"
    assert verdicts_of(claim(registry, mailer, make_event(2))) == [expected]


def test_a_retried_event_may_be_stale(registry: Registry) -> None:
    """G5: in latest_wins a retried dead letter may be stale."""
    view = make_handler(mode="latest_wins", retry=QUICK)
    exhaust_attempts(registry, view)
    claim_and_complete(registry, view, make_event(2))
    registry.retry(EntryFilter(status="dead"))

    assert verdicts_of(claim(registry, view, make_event(1))) == ["stale"]


@pytest.mark.parametrize("status", ["claimed", "failed", "blocked", "dead", "unknown"])
def test_an_operator_skips_an_event(
    registry: Registry, expiring_registry: Registry, status: str
) -> None:
    """G5: any unfinished event can be skipped with a reason, and counts as done."""
    mailer = (
        make_handler(effect="unsafe", retry=QUICK)
        if status == "unknown"
        else make_handler(retry=QUICK)
    )
    if status == "claimed":
        claim(registry, mailer, make_event(1))
    elif status == "failed":
        fail_event(registry, mailer)
    elif status == "dead":
        exhaust_attempts(registry, mailer)
    elif status == "unknown":
        claim(expiring_registry, mailer, make_event(1))
        time.sleep(0.05)
        registry.due(mailer)
    else:
        registry.release(mailer, claim(registry, mailer, make_event(1)))
    assert statuses_of(registry) == {make_event(1).event_id: status}

    assert registry.skip(EntryFilter(event_id=make_event(1).event_id), "known to be empty") == 1
    assert verdicts_of(claim(registry, mailer, make_event(1), make_event(2))) == [
        "duplicate_done",
        "claimed",
    ]
    [entry] = registry.entries(EntryFilter(status="skipped"))
    assert entry.reason == "known to be empty"
    with pytest.raises(InvalidArgument, match="say why"):
        registry.skip(EntryFilter(), "  ")


def test_a_skipped_event_cannot_be_completed(registry: Registry) -> None:
    """G5: the owner of a skipped event can no longer complete it."""
    mailer = make_handler()
    claims = claim(registry, mailer, make_event(1))
    registry.skip(EntryFilter(), "hangs")

    with pytest.raises(Exception, match="no longer held"):
        registry.mark_done(mailer, claims)


def test_an_unsafe_effect_with_an_expired_lease_is_unknown(
    registry: Registry, expiring_registry: Registry
) -> None:
    """G7: an unsafe effect whose lease expired is unknown until its owner completes it."""
    caller = make_handler(effect="unsafe")
    claims = claim(expiring_registry, caller, make_event(1))
    time.sleep(0.05)

    assert verdicts_of(claim(registry, caller, make_event(1))) == ["unknown"]
    registry.defer(caller, [make_event(1)])
    assert statuses_of(registry) == {make_event(1).event_id: "unknown"}
    assert registry.due(caller) == []
    expiring_registry.mark_done(caller, claims)  # it was only slow
    assert statuses_of(registry) == {make_event(1).event_id: "done"}


def test_an_unsafe_effect_with_retry_unknown(
    registry: Registry, expiring_registry: Registry
) -> None:
    """G7: with `retry_unknown` an unsafe effect whose lease expired is claimed again."""
    caller = make_handler(effect="unsafe", retry_unknown=True)
    claim(expiring_registry, caller, make_event(1))
    time.sleep(0.05)

    assert verdicts_of(claim(registry, caller, make_event(1))) == ["claimed"]


def test_an_operator_retries_an_unknown_event(
    registry: Registry, expiring_registry: Registry
) -> None:
    """G7: an operator can retry an event with an unknown outcome."""
    caller = make_handler(effect="unsafe")
    claim(expiring_registry, caller, make_event(1))
    time.sleep(0.05)
    registry.defer(caller, [make_event(1)])
    registry.retry(EntryFilter(status="unknown"))

    assert [one.event_id for one in registry.due(caller)] == [make_event(1).event_id]
    assert verdicts_of(claim(registry, caller, make_event(1))) == ["claimed"]


def test_counts_and_entries(registry: Registry) -> None:
    """M2: entries of the registry are counted and listed by handler and status."""
    mailer, biller = make_handler(retry=QUICK), make_handler("biller")
    exhaust_attempts(registry, mailer)
    claim_and_complete(registry, biller, make_event(1), make_event(2))
    claim(registry, biller, make_event(3, event_type="seat.freed"))

    assert {(count.handler, count.status): count.count for count in registry.counts()} == {
        ("mailer", "dead"): 1,
        ("biller", "claimed"): 1,
    }
    assert ("biller", "done", 2) in [
        (count.handler, count.status, count.count) for count in registry.counts(finished=True)
    ]
    assert statuses_of(registry, event_type="seat.freed") == {make_event(3).event_id: "claimed"}
    assert len(registry.entries(EntryFilter(handler="biller", after=1), limit=1)) == 1
    assert statuses_of(registry, tenant_id="nobody") == {}
    with pytest.raises(NotFound, match="no handler"):
        registry.set_status("nobody", "paused")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("seat.*", {"a", "b", "d"}),
        ("seat.taken", {"a"}),
        ("*", {"a", "b", "c", "d", "e"}),
        (r"seat.\*", {"d"}),
        ("sé.*", {"e"}),
        ("seat.taken.*", set()),
    ],
)
def test_patterns_of_event_types(registry: Registry, pattern: str, found: set[str]) -> None:
    """E7: operators filter event types by the same patterns as reads."""
    types = {"a": "seat.taken", "b": "seat.freed", "c": "seats.x", "d": "seat.*", "e": "sé.x"}
    events = [make_event(None, event_id=name, event_type=kind) for name, kind in types.items()]
    claim(registry, make_handler(), *events)

    assert set(statuses_of(registry, event_type=pattern)) == found
    assert registry.skip(EntryFilter(event_type=pattern), "given up") == len(found)
    assert set(statuses_of(registry, status="skipped")) == found


@pytest.mark.parametrize("pattern", ["se*", "*.taken", "seat.*.x"])
def test_an_invalid_pattern_is_refused(registry: Registry, pattern: str) -> None:
    """E7: a misplaced star is an error, not an empty result."""
    for act in (registry.entries, registry.retry):
        with pytest.raises(InvalidArgument, match="event_type"):
            act(EntryFilter(event_type=pattern))


def test_a_paused_handler(registry: Registry) -> None:
    """G6: a paused handler claims nothing."""
    mailer = make_handler()
    registry.declare(mailer)
    registry.set_status("mailer", "paused", "deploying")

    assert verdicts_of(claim(registry, mailer, make_event(1))) == ["blocked"]
    assert registry.inactive_reason(mailer) == "paused: deploying"
    registry.set_status("mailer", "ready")
    assert verdicts_of(claim(registry, mailer, make_event(1))) == ["claimed"]


def test_old_entries_are_pruned(registry: Registry) -> None:
    """G3: old done entries are pruned if their sequence number still identifies them."""
    mailer = make_handler()
    claim_and_complete(registry, mailer, make_event(1), make_event(None, event_id="plain"))
    time.sleep(0.01)

    assert registry.prune("mailer", 3600) == 0
    assert registry.prune("mailer", 0.001) == 1
    assert verdicts_of(
        claim(registry, mailer, make_event(1), make_event(None, event_id="plain"))
    ) == [
        "stale",
        "duplicate_done",
    ]
    assert registry.prune("mailer", 0.001, streamless=True) == 1


def test_missing_named_event_is_not_found(registry: Registry) -> None:
    """L3: retrying or skipping a missing event is `not_found`; a filter counts 0."""
    mailer = make_handler()
    registry.declare(mailer)
    claim_and_complete(registry, mailer, make_event(1))

    for name in (make_event(1).event_id, "nobody"):
        with pytest.raises(NotFound, match=name):
            registry.retry(EntryFilter(event_id=name))
        with pytest.raises(NotFound, match=name):
            registry.skip(EntryFilter(event_id=name, handler="mailer"), "given up")
    with pytest.raises(NotFound):
        registry.prune("nobody", 0)
    with pytest.raises(NotFound):
        registry.set_status("nobody", "paused")

    assert registry.retry(EntryFilter(status="dead")) == 0
    assert registry.skip(EntryFilter(handler="nobody"), "given up") == 0
