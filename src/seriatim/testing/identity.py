"""F8: a log has an identity, and a consumer that meets another identity stops."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from seriatim.core.errors import LogIdentityChanged
from seriatim.factory import Log
from seriatim.log.cursors import make_cursor
from seriatim.testing.factories import SharedStore, events, open_on_same_store, positions

QUICK: dict[str, Any] = {"poll_s": 0.02, "idle_timeout": 0.0}


def store_foreign_cursor(log: Log, changes: Mapping[str, object]) -> None:
    """Store a cursor like that of a consumer of another log or another history."""
    cursor = make_cursor(
        log.store, log.tenant_id, "subscription", "s", log.head(), '{"filters":[]}'
    )
    log.store.put_cursor(msgspec.structs.replace(cursor, **changes), lease=None, reset=True)


class RestoredStore(SharedStore):
    """A store that appears to be restored from an older backup once `shrunk` is set."""

    shrunk = False

    def head(self) -> int:
        """Return a lower head once `shrunk` is set."""
        return 1 if self.shrunk else self.wrapped.head()


class IdentityContract:
    """F8: the identity of a log, its epoch, and cursors that record both."""

    def test_a_log_has_an_identity(self, log: Log) -> None:
        """F8: the log id, a UUID made at creation, and the epoch are stable."""
        identity = log.identity()

        assert str(uuid.UUID(identity.log_id)) == identity.log_id
        assert identity.epoch >= 1
        log.append(events(1))
        assert log.identity() == identity
        with open_on_same_store(log) as other:
            assert other.identity() == identity

    def test_restore_raises_the_epoch(self, log: Log) -> None:
        """F8: a restore or promotion raises the epoch and keeps the id."""
        before = log.identity()

        raised = log.store.raise_epoch()

        assert (raised.log_id, raised.epoch) == (before.log_id, before.epoch + 1)
        assert log.identity() == raised

    def test_a_raised_epoch_stops_a_consumer(self, log: Log) -> None:
        """F8: a durable subscription of an earlier epoch fails until it is reset."""
        log.append(events(2))
        subscription = log.subscribe("s", **QUICK)
        assert [positions(batch) for batch in subscription] == [[1, 2]]
        log.append(events(1))

        log.store.raise_epoch()

        with pytest.raises(LogIdentityChanged) as caught:
            log.subscribe("s", **QUICK)
        assert caught.value.details == {"name": "s", "position": 2}
        with pytest.raises(LogIdentityChanged):
            list(subscription)
        assert subscription.position == 2
        subscription.reset(2)
        assert [positions(batch) for batch in log.subscribe("s", **QUICK)] == [[3]]

    @pytest.mark.parametrize(
        "changes",
        [
            {"log_id": "0190b5e2-0000-7000-8000-000000000001"},
            {"epoch": 7},
            {"position": 3},
            {"last_event_id": "another-event"},
        ],
    )
    def test_another_history_is_detected(self, log: Log, changes: dict[str, Any]) -> None:
        """F8: another log or epoch, a lower head, or another event at the cursor is detected."""
        log.append(events(2))
        store_foreign_cursor(log, changes)

        with pytest.raises(LogIdentityChanged):
            log.subscribe("s")

        store_foreign_cursor(log, {})
        assert log.subscribe("s").position == 2

    def test_raised_epoch_stops_a_running_subscription(self, log: Log) -> None:
        """F8: a running subscription detects a restore and does not move its cursor."""
        log.append(events(1))
        subscription = log.subscribe("s", poll_s=0.02)
        batches: list[list[int]] = []

        def handler(batch: list[Any]) -> None:
            batches.append(positions(batch))
            log.store.raise_epoch()

        with pytest.raises(LogIdentityChanged):
            subscription.run(handler)

        assert batches == [[1]]
        with pytest.raises(LogIdentityChanged):
            log.subscribe("s")

    def test_a_raised_epoch_stops_a_tail(self, log: Log) -> None:
        """F8: a tail stops when the epoch was raised."""
        log.append(events(1))
        batches = iter(log.tail(after=0, poll_s=0.02))
        next(batches)

        log.store.raise_epoch()

        with pytest.raises(LogIdentityChanged):
            next(batches)

    def test_lower_head_stops_a_running_tail(self, log: Log) -> None:
        """F8: a tail stops if the log has become shorter."""
        log.append(events(2))
        store = RestoredStore(log.store)

        with open_on_same_store(log, store) as restored:
            batches = iter(restored.tail(after=0, poll_s=0.02))
            next(batches)
            store.shrunk = True
            with pytest.raises(LogIdentityChanged) as caught:
                next(batches)
        assert caught.value.details == {"position": 2, "head": 1}
