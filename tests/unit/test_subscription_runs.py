"""Subscriptions on a store that fails temporarily or permanently."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import seriatim
from seriatim import LimitExceeded, Log, LogIdentityChanged, SeriatimError, TimedOut
from seriatim.store.port import Lease, LogClosed, Store
from seriatim.testing.factories import BatchCollector, SharedStore, event, open_on_same_store


class FailingLeaseStore(SharedStore):
    """A store that refuses leases with the given errors, one after the other."""

    def __init__(self, store: Store, *moods: SeriatimError) -> None:
        super().__init__(store)
        self.moods = list(moods)

    def claim_lease(self, tenant_id: str, name: str, owner: str, seconds: float) -> Lease | None:
        """Raise the next error, or claim the lease if none is left."""
        if self.moods:
            raise self.moods.pop(0)
        return self.wrapped.claim_lease(tenant_id, name, owner, seconds)


@pytest.fixture
def log() -> Iterator[Log]:
    """A log with one event."""
    with seriatim.open("memory:") as opened:
        opened.append([event()])
        yield opened


@pytest.mark.parametrize(
    "mood",
    [
        TimedOut("no time"),
        LimitExceeded("no room", retryable=True, details={"retry_after_s": 0.2}),
        seriatim.BackendFailure("no grant", retryable=False),
    ],
    ids=lambda mood: str(mood.code),
)
def test_run_continues_after_transient_errors(log: Log, mood: SeriatimError) -> None:
    """E5: a run continues after a transient error of the store and the requested delay."""
    seen = BatchCollector()
    began = time.monotonic()
    with open_on_same_store(log, FailingLeaseStore(log.store, mood, mood)) as other:
        subscription = other.subscribe("s", idle_timeout=0.0, backoff_s=0.01)
        subscription.run(seen)

    assert len(seen.records(1)) == 1
    assert subscription.last_error is mood
    assert time.monotonic() - began >= 2 * mood.retry_after_s


@pytest.mark.parametrize("mood", [LimitExceeded("too large"), LogIdentityChanged(), LogClosed()])
def test_run_ends_with_permanent_errors(log: Log, mood: SeriatimError) -> None:
    """E5: a permanent error ends a run, and the position does not move."""
    with open_on_same_store(log, FailingLeaseStore(log.store, mood)) as other:
        subscription = other.subscribe("s", idle_timeout=0.0)
        with pytest.raises(type(mood)):
            subscription.run(BatchCollector())

    assert subscription.last_error is mood
    assert subscription.position == 0
