"""Tails and durable subscriptions: catch up, then follow live; one append is one batch.

States of a durable subscription:

    waiting for the lease -> catching up -> live -> (handler fails -> backing off -> same batch)
             ^                    ^                     |                    |
             |                    +--- (skipped) -------+--------------------+
             |                                          v
             +---------- (an operator acts) -------- parked

An attempt is counted in the row of the cursor, under the token of the lease, before the handler is
called. So the count includes attempts whose process ended. Without a bound nobody needs the count
of the first attempt, and it is not stored.

Wake-ups are hints: a lost wake-up delays an event by the poll interval, and never loses it.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Literal

import msgspec

from seriatim.core.canonical import canonical_text
from seriatim.core.error_summary import summarize_error
from seriatim.core.errors import (
    BackendFailure,
    LeaseLost,
    LimitExceeded,
    LogIdentityChanged,
    SeriatimError,
    SubscriptionParked,
)
from seriatim.core.query import Query
from seriatim.log.arguments import invalid_argument
from seriatim.log.batches import Batch, iterate_matching_appends
from seriatim.log.cursors import check_cursor, make_cursor, reset_subscription
from seriatim.log.failure_policy import FailurePolicy
from seriatim.store.lease_keeper import LeaseKeeper, wait_for_lease
from seriatim.store.log_identity import check_same_log
from seriatim.store.port import (
    BatchAttempt,
    Cursor,
    Lease,
    LogClosed,
    SkippedBatch,
    Store,
    make_lease_name,
)
from seriatim.telemetry.event_bus import EventName, Telemetry

logger = logging.getLogger("seriatim")

_STORE_SKIP_FROM = 1000  # positions without a match, after which the cursor is stored anyway


class Tail:
    """Iterate over the batches after a position, until `stop` is called or the log is idle.

    Args:
        store: The store of the log.
        tenant_id: The tenant whose events are read.
        query: The events to receive.
        position: The exclusive start; must not be after the head.
        idle_timeout: Seconds without an event after which the iteration ends; None: never.
        poll_s: How often to look for new events if no wake-up arrives.
        on_scanned: Called with the position up to which the log was scanned, when caught up.

    Example:
        tail = log.tail(after=0, idle_timeout=0.1)
        for batch in tail:
            print(tail.position, [record.event_type for record in batch])
    """

    def __init__(
        self,
        store: Store,
        tenant_id: str,
        query: Query,
        position: int,
        *,
        idle_timeout: float | None = None,
        poll_s: float = 1.0,
        on_scanned: Callable[[int], None] | None = None,
    ) -> None:
        if position > (head := store.head()):
            raise invalid_argument("after", f"must not be after the head: {position} > {head}")
        self.position = position
        # A restored or replaced log has another event at this position, or none.
        self._last_event_id = _event_id_at(store, position)
        self._identity = store.identity()
        self._store = store
        self._tenant_id = tenant_id
        self._query = query
        self._idle_timeout = idle_timeout
        self._poll_s = poll_s
        self._on_scanned = on_scanned
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the iteration, from any thread, within one poll interval.

        Example:
            tail = log.tail(after=0)
            for batch in tail:
                if any(record.event_type == "order.paid" for record in batch):
                    tail.stop()
        """
        self._stopped.set()

    def __iter__(self) -> Iterator[Batch]:
        """Yield each committed append once, in order."""
        idle_since = time.monotonic()
        while not self._stopped.is_set():
            # The head first: all events up to it are visible by now, so that the position may move
            # to it after the scan, also past events that do not match.
            head = self._store.head()
            check_same_log(self._store, self._identity, self.position, self._last_event_id, head)
            for batch in iterate_matching_appends(
                self._store, self._tenant_id, self._query, self.position, head
            ):
                yield batch
                # Only after the yield: a consumer that stops here has not processed the batch.
                self.position, self._last_event_id = batch[-1].position, batch[-1].event_id
                idle_since = time.monotonic()
                if self._stopped.is_set():
                    return
            if head > self.position:
                self.position, self._last_event_id = head, _event_id_at(self._store, head)
            if self._on_scanned is not None:
                self._on_scanned(self.position)
            idle = time.monotonic() - idle_since
            if self._idle_timeout is not None and idle >= self._idle_timeout:
                return
            wait_s = self._poll_s if self._idle_timeout is None else self._idle_timeout - idle
            self._store.wait(self.position, min(self._poll_s, wait_s))


def _event_id_at(store: Store, position: int) -> str:
    return store.event_id_at(position) or "" if position else ""


class _Delivery:
    """A batch in delivery: the lease of its owner, the attempts, and why it is given up, if it is.

    A subscription may be run by several threads, one of which has lost its lease.
    """

    def __init__(self, batch: Batch, lease: Lease) -> None:
        self.batch = batch
        self.lease = lease
        self.attempt = BatchAttempt(
            first_position=batch[0].position, last_position=batch[-1].position, attempts=0
        )
        self.poison: Exception | None = None

    @property
    def position(self) -> int:
        """The first position of the batch."""
        return self.attempt.first_position


class UnfinishedAttempt(Exception):  # noqa: N818 - the reason of a failure, never raised
    """The last attempt at a batch neither succeeded nor reported an error."""


class Subscription:
    """A durable subscription: its cursor advances only after a batch was processed.

    Iterate over it, or `run` a handler. A lease ensures one owner at a time; others wait for it.
    While it is parked at a batch, it delivers nothing until an operator acts.

    Args:
        store: The store of the log.
        tenant_id: The tenant whose events are read.
        name: The name under which the cursor is stored.
        query: The events to receive.
        start: The position after which a new subscription starts, or `"head"`.
        lease_s: How long the lease lasts without being renewed.
        poll_s: How often to look for new events if no wake-up arrives.
        idle_timeout: Seconds without an event after which the iteration ends; None: never.
        policy: What happens after a failure; by default a batch is repeated until it succeeds.
        tail_class: The class of the tail that reads the log.
        telemetry: Receives an event for every failure.

    Raises:
        Conflict: The subscription exists with another query.
        LogIdentityChanged: The log was restored or replaced since the cursor was stored.
        SubscriptionParked: It stops at a failed batch; raised while iterating.

    Example:
        subscription = log.subscribe("mailer", idle_timeout=0.1)
        for batch in subscription:
            print("send", len(batch), "mails")
        print(subscription.position)
    """

    def __init__(
        self,
        store: Store,
        tenant_id: str,
        name: str,
        query: Query,
        *,
        start: int | Literal["head"] = 0,
        lease_s: float = 10.0,
        poll_s: float = 1.0,
        idle_timeout: float | None = None,
        policy: FailurePolicy | None = None,
        tail_class: type[Tail] = Tail,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._telemetry = telemetry or Telemetry()
        self._lease: Lease | None = None
        self.name = name
        self._tail_class = tail_class
        self.failures = 0
        self.last_error: Exception | None = None
        self._store = store
        self._tenant_id = tenant_id
        self._query = query
        self._start = start
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._idle_timeout = idle_timeout
        self._policy = policy or FailurePolicy()
        self._handled = 0  # the first position of the last batch that was handled
        self._stopped = threading.Event()
        self._tail: Tail | None = None
        self._unreleased: list[tuple[int, str]] = []  # (pid, owner) that may hold the lease
        self._cursor = self._open_cursor()

    def make_owner(self) -> str:
        """Return an owner id for one acquisition of the lease.

        It is a new id, also in a forked child, unless an earlier acquisition in this process ended
        without releasing the lease: its owner id can claim the lease again at once.
        """
        while self._unreleased:
            pid, owner = self._unreleased.pop()
            if pid == os.getpid():
                return owner
        return f"{os.getpid()}-{secrets.token_hex(6)}"

    def remember_owner(self, owner: str) -> None:
        """Let the next acquisition take over a lease that could not be released."""
        self._unreleased.append((os.getpid(), owner))

    def _open_cursor(self) -> Cursor:
        query = canonical_text(self._query.as_dict())
        cursor = self._store.cursor(self._tenant_id, "subscription", self.name)
        if cursor is None:
            position = self._store.head() if self._start == "head" else self._start
            created = make_cursor(
                self._store, self._tenant_id, "subscription", self.name, position, query
            )
            cursor = self._store.add_cursor(created)  # returns another opener's cursor if it won
        check_cursor(self._store, cursor, query)
        return cursor

    @property
    def position(self) -> int:
        """The stored cursor: the position up to which batches were processed."""
        cursor = self._store.cursor(self._tenant_id, "subscription", self.name)
        return 0 if cursor is None else cursor.position

    def reset(self, position: int) -> None:
        """Set the cursor to any position, also backwards, and accept the log's current identity.

        Raises:
            InvalidArgument: The position is malformed or after the head.

        Example:
            log.subscribe("mailer").reset(0)
        """
        reset_subscription(self._store, self._tenant_id, self.name, position, self._query)

    def stop(self) -> None:
        """End the iteration or the run, from any thread.

        Example:
            subscription = log.subscribe("mailer")
            for batch in subscription:
                subscription.stop()
        """
        self._stopped.set()
        if self._tail is not None:
            self._tail.stop()

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches; requesting the next one confirms that the last was processed."""
        with closing(self._iterate_deliveries()) as deliveries:
            for delivery in deliveries:
                yield delivery.batch

    def _iterate_deliveries(self) -> Generator[_Delivery, None, None]:
        """Yield batches; requesting the next one confirms the last, or gives it up."""
        while True:
            with self._hold_lease() as lease_and_keeper:
                if lease_and_keeper is None:
                    return
                parked = yield from self._deliver(*lease_and_keeper)
            # Without the lease: an operator may move the cursor of a parked subscription at once.
            if not parked or not self._wait_while_parked():
                return

    def _deliver(self, lease: Lease, keeper: LeaseKeeper) -> Generator[_Delivery, None, bool]:
        """Yield batches until the end of the tail; return True if the subscription is parked."""
        self._lease = lease
        # Another owner may have advanced the cursor while this one waited for the lease.
        self._cursor = self._open_cursor()
        if self._cursor.parked:
            self._report_parked()
            return True
        tail = self._tail = self._make_tail(lease)
        for batch in tail:
            delivery = _Delivery(batch, lease)
            self._begin_delivery(delivery)
            if delivery.poison is None:
                yield delivery
                keeper.check()  # the consumer may have forked: the lease is not the child's
            if delivery.poison is None:
                self._handled = delivery.position
                self._store_cursor(batch[-1].position, batch[-1].event_id, lease)
            elif not self._give_up(delivery, delivery.poison):
                return True
        # At the end even a short skip is worth a write: no later one will include it.
        self._skip_to(tail.position, lease, min_skip=1)
        return False

    def _wait_while_parked(self) -> bool:
        """Wait until an operator acts; return False if the iteration ends first."""
        deadline = None if self._idle_timeout is None else time.monotonic() + self._idle_timeout
        while not self._stopped.is_set():
            cursor = self._store.cursor(self._tenant_id, "subscription", self.name)
            if cursor is None or not cursor.parked:
                return True
            remaining = self._poll_s if deadline is None else deadline - time.monotonic()
            if remaining <= 0:
                return False
            self._stopped.wait(min(self._poll_s, remaining))
        return False

    @contextmanager
    def _hold_lease(self) -> Iterator[tuple[Lease, LeaseKeeper] | None]:
        """Hold the lease during the block; yield None if the wait for it was stopped."""
        owner = self.make_owner()
        with self._remember_after_error(owner):
            lease = wait_for_lease(
                lambda: self._claim_lease(owner),
                stopped=self._stopped.is_set,
                # So that an owner that died is replaced soon after its lease has expired.
                interval_s=min(self._poll_s, self._lease_s / 4),
                sleep=self._stopped.wait,
            )
        if lease is None:
            yield None
            return

        def release() -> None:
            with self._remember_after_error(owner):
                self._store.release_lease(lease)

        with LeaseKeeper(
            lambda: self._store.renew_lease(lease, self._lease_s),
            self._lease_s / 3,  # so that one failed renewal does not lose the lease
            name=f"the lease of subscription {self.name!r:.80}",
            on_error=self._note_error,
            release=release,
        ) as keeper:
            yield lease, keeper

    def _claim_lease(self, owner: str) -> Lease | None:
        name = make_lease_name(self.name)
        return self._store.claim_lease(self._tenant_id, name, owner, self._lease_s)

    @contextmanager
    def _remember_after_error(self, owner: str) -> Iterator[None]:
        """Remember an owner that may hold the lease: the response of the store may be lost."""
        try:
            yield
        except SeriatimError:
            self.remember_owner(owner)
            raise

    def _note_error(self, error: Exception) -> None:
        self.last_error = error

    def _make_tail(self, lease: Lease) -> Tail:
        tail = self._tail_class(
            self._store,
            self._tenant_id,
            self._query,
            self._cursor.position,
            idle_timeout=self._idle_timeout,
            poll_s=self._poll_s,
            on_scanned=lambda position: self._skip_to(position, lease, min_skip=_STORE_SKIP_FROM),
        )
        if self._stopped.is_set():  # `stop` was called before there was a tail to stop
            tail.stop()
        return tail

    # -- attempts

    def _begin_delivery(self, delivery: _Delivery) -> None:
        """Count the first attempt of this owner at a batch, or give the batch up."""
        stored = self._cursor.attempt
        if stored is None or stored.first_position != delivery.position:
            self._begin_attempt(delivery)
            return
        delivery.attempt = stored
        if self._handled == delivery.position:
            # The handler has succeeded, but the cursor could not be moved: that is no failure.
            delivery.attempt = msgspec.structs.replace(stored, attempts=stored.attempts - 1)
        elif self._is_exhausted(stored):
            count = stored.attempts
            msg = f"attempt {count} had no result: its process ended, or its loop was left"
            delivery.poison = UnfinishedAttempt(msg)
            return
        self._begin_attempt(delivery)

    def _is_exhausted(self, stored: BatchAttempt) -> bool:
        """Return whether the last allowed attempt has begun, and ended without a result.

        If it has failed instead, the bound was introduced or lowered since, and the batch gets an
        attempt under the new one.
        """
        return not self._policy.allows(stored.attempts + 1) and stored.failures < stored.attempts

    def _begin_attempt(self, delivery: _Delivery) -> None:
        earlier = delivery.attempt.attempts
        delivery.attempt = msgspec.structs.replace(
            delivery.attempt, attempts=earlier + 1, failures=earlier
        )
        self.failures = earlier
        self._handled = 0
        if self._policy.retry is not None or earlier:
            # Fenced: an operator may have skipped the batch, or reset the cursor, since.
            self._store.put_attempt(delivery.lease, self.name, delivery.attempt)

    def _fail_attempt(self, delivery: _Delivery) -> BatchAttempt:
        """Count the current attempt as failed, and return it."""
        self.failures = delivery.attempt.attempts
        delivery.attempt = msgspec.structs.replace(delivery.attempt, failures=self.failures)
        return delivery.attempt

    def _give_up(self, delivery: _Delivery, error: Exception) -> bool:
        """Skip a batch by the policy and return True, or park the subscription."""
        attempt = self._fail_attempt(delivery)
        reason = summarize_error(error)
        if self._policy.on_poison == "skip" and self._skip_batch(delivery, reason):
            self._report(error, "skipped", delivery.position)
            self._emit_decision("subscription.skip", attempt)
            return True
        self._store.put_attempt(delivery.lease, self.name, attempt, error=reason, park=True)
        self._report(error, "parked", delivery.position)
        self._emit_decision("subscription.park", attempt)
        if self._policy.on_poison == "stop":
            raise self._make_parked_error(attempt) from error
        return False

    def _skip_batch(self, delivery: _Delivery, reason: str) -> bool:
        """Move the cursor past a batch and record it; return False if too many were skipped."""
        last, attempt = delivery.batch[-1], delivery.attempt
        cursor = self._move_cursor(last.position, last.event_id)
        skipped = SkippedBatch(
            first_position=attempt.first_position,
            last_position=attempt.last_position,
            attempts=attempt.attempts,
            error=reason,
        )
        after = self._cursor.position
        try:
            self._store.skip_batch(cursor, skipped, after=after, lease=delivery.lease)
        except LimitExceeded as error:
            if error.details.get("limit") != "skipped_batches":
                raise
            return False
        self._cursor = cursor
        return True

    def _make_parked_error(self, attempt: BatchAttempt) -> SubscriptionParked:
        msg = (
            f"subscription {self.name!r} is parked at position {attempt.first_position} after "
            f"{attempt.attempts} attempts: retry, skip or reset it (seriatim subscriptions)"
        )
        details = {
            "name": self.name,
            "first_position": attempt.first_position,
            "last_position": attempt.last_position,
            "attempts": attempt.attempts,
        }
        return SubscriptionParked(msg, details=details)

    def _report_parked(self) -> None:
        """Log that the subscription waits for an operator; raise an error if it shall stop."""
        attempt = self._cursor.attempt
        if attempt is None:
            return
        error = self._make_parked_error(attempt)
        if self._policy.on_poison == "stop":
            raise error
        logger.warning("tenant %r: %s", self._tenant_id, error.message)

    # -- the cursor

    def _skip_to(self, position: int, lease: Lease, *, min_skip: int) -> None:
        """Advance the cursor past events without a match, so that no restart rescans them."""
        if position - self._cursor.position >= min_skip:
            self._store_cursor(position, self._store.event_id_at(position) or "", lease)

    def _store_cursor(self, position: int, last_event_id: str, lease: Lease) -> None:
        cursor = self._move_cursor(position, last_event_id)
        # With the lease, so that the store refuses it from an owner that has been replaced.
        self._store.put_cursor(cursor, lease=lease, reset=False)
        self._cursor = cursor

    def _move_cursor(self, position: int, last_event_id: str) -> Cursor:
        # The cursor keeps the identity from when it was opened, so a restored log is detected.
        return msgspec.structs.replace(
            self._cursor, position=position, last_event_id=last_event_id, attempt=None
        )

    # -- run a handler

    def run(self, handler: Callable[[Batch], object]) -> None:
        """Call a handler for each batch until stopped or idle; retry a batch that fails.

        After the last attempt that the retry policy allows, the subscription is parked, skips the
        batch, or stops, as it was opened. If the lease is lost, it waits for the lease again. If
        the store fails or is busy, it retries.

        Raises:
            BackendFailure: The log was closed.
            LogIdentityChanged: The log was restored or replaced.
            SubscriptionParked: It was opened with `on_poison="stop"` and is parked.

        Example:
            log.subscribe("mailer", idle_timeout=0.1).run(lambda batch: print(len(batch)))
        """
        while True:
            try:
                return self._run_once(handler)
            except SubscriptionParked:
                raise  # it is logged and stored
            except LeaseLost as error:
                # No delay: the next run begins with waiting for the lease.
                self._report(error, _describe_delay(0.0))
            except SeriatimError as error:
                if not _is_transient(error):
                    self._report(error, "giving up")
                    self._store_failure(error)
                    raise
                delay = max(self._policy.backoff.first_s, error.retry_after_s)
                self._report(error, _describe_delay(delay), delay_s=delay)
                self._store_failure(error)
                if self._stopped.wait(delay):
                    return None

    def _run_once(self, handler: Callable[[Batch], object]) -> None:
        with closing(self._iterate_deliveries()) as deliveries:
            for delivery in deliveries:
                # The lease is renewed in the background, so that the batch stays with this owner.
                while (error := self._call_handler(handler, delivery.batch)) is not None:
                    if self._policy.gives_up(delivery.attempt.attempts, error):
                        delivery.poison = error
                        break
                    if not self._wait_for_attempt(delivery, error):
                        return  # without requesting the next batch, which would confirm this one
                else:
                    self.failures = 0

    def _call_handler(self, handler: Callable[[Batch], object], batch: Batch) -> Exception | None:
        try:
            handler(batch)
        except LogIdentityChanged:
            raise  # an operator must decide what to do with a restored or replaced log
        except Exception as error:  # noqa: BLE001 - whatever it is, the batch is retried
            return error
        return None

    def _wait_for_attempt(self, delivery: _Delivery, error: Exception) -> bool:
        """Record a failed attempt and wait for the next one; return False if stopped."""
        attempt = self._fail_attempt(delivery)
        delay = self._policy.delay_s(attempt.attempts)
        self._report(error, _describe_delay(delay), delivery.position, delay)
        self._store_failed_attempt(delivery, error)
        if self._stopped.wait(delay):
            return False
        self._begin_attempt(delivery)
        return True

    # -- report failures

    def _report(
        self, error: Exception, next_step: str, position: int | None = None, delay_s: float = 0.0
    ) -> None:
        """Log a failure and emit a telemetry event; the backoff limits how often this happens."""
        self.last_error = error
        event = "failed" if position is None else f"failed on the append at position {position}"
        logger.warning(
            "subscription %r of tenant %r %s (attempt %d, %s): %s",
            self.name,
            self._tenant_id,
            event,
            max(self.failures, 1),
            next_step,
            summarize_error(error),
        )
        if self._telemetry.active:
            metadata = {
                "tenant_id": self._tenant_id,
                "subscription": self.name,
                "error": type(error).__name__,
                "error_code": error.code if isinstance(error, SeriatimError) else None,
            }
            counts = {"failures": float(self.failures), "delay_s": delay_s}
            self._telemetry.emit("subscription.exception", counts, metadata)

    def _emit_decision(self, name: EventName, attempt: BatchAttempt) -> None:
        if self._telemetry.active:
            metadata = {
                "tenant_id": self._tenant_id,
                "subscription": self.name,
                "first_position": attempt.first_position,
                "last_position": attempt.last_position,
            }
            self._telemetry.emit(name, {"attempts": float(attempt.attempts)}, metadata)

    def _store_failed_attempt(self, delivery: _Delivery, error: Exception) -> None:
        lease, attempt, reason = delivery.lease, delivery.attempt, summarize_error(error)
        try:
            self._store.put_attempt(lease, self.name, attempt, error=reason)
        except LeaseLost:
            raise  # no further attempt: the batch belongs to another owner, or to nobody
        except Exception as failure:  # noqa: BLE001 - the failed attempt itself was logged
            self._log_unstored(failure)

    def _store_failure(self, error: Exception) -> None:
        lease = self._lease
        if lease is None:
            return
        try:
            self._store.record_failure(
                lease, self.name, max(self.failures, 1), summarize_error(error)
            )
        except Exception as failure:  # noqa: BLE001 - the failure itself was logged
            self._log_unstored(failure)

    def _log_unstored(self, error: Exception) -> None:
        msg = "the last error of subscription %r was not stored: %s"
        logger.debug(msg, self.name, summarize_error(error))

    def start(self, handler: Callable[[Batch], object]) -> threading.Thread:
        """Run a handler in a new daemon thread, and return the thread; see `run`.

        Example:
            thread = log.subscribe("mailer", idle_timeout=0.1).start(lambda batch: None)
            thread.join()
        """
        thread = threading.Thread(
            target=self.run, args=(handler,), name=f"seriatim-{self.name}", daemon=True
        )
        thread.start()
        return thread


def _describe_delay(delay_s: float) -> str:
    return f"next attempt in {delay_s:g} s"


def _is_transient(error: SeriatimError) -> bool:
    """Return whether a run continues after an error: not on a closed or a restored log."""
    if isinstance(error, BackendFailure):
        # An operator may repair even a permanent failure while the subscription keeps retrying.
        return not isinstance(error, LogClosed)
    return error.retryable
