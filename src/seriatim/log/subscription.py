"""Tails and durable subscriptions: catch up, then follow live; one append is one batch.

States of a durable subscription:

    waiting for the lease -> catching up -> live -> (handler fails -> backing off -> same batch)
                                  ^                                          |
                                  +------------------------------------------+

Wake-ups are hints: a lost wake-up delays an event by the poll interval, and never loses it.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from seriatim.core.backoff import Backoff
from seriatim.core.canonical import canonical_text, decode_stored_json
from seriatim.core.error_summary import summarize_error
from seriatim.core.errors import BackendFailure, LeaseLost, LogIdentityChanged, SeriatimError
from seriatim.core.query import Query
from seriatim.core.times import parse_us
from seriatim.log.arguments import invalid_argument
from seriatim.log.batches import Batch, iterate_matching_appends
from seriatim.log.cursors import check_cursor, make_cursor, reset_subscription
from seriatim.store.lease_keeper import LeaseKeeper, wait_for_lease
from seriatim.store.log_identity import check_same_log
from seriatim.store.port import (
    Cursor,
    Lease,
    LogClosed,
    ServiceStore,
    Store,
    SubscriptionState,
    SubscriptionStatus,
    make_lease_name,
)
from seriatim.telemetry.event_bus import Telemetry

STATUS_PAGE_SIZE = 100


def iterate_subscription_statuses(
    store: ServiceStore, tenant_id: str
) -> Iterator[SubscriptionStatus]:
    """Yield the status of every durable subscription of a tenant, by name."""
    after = ""
    while page := read_subscription_statuses(store, tenant_id, after, STATUS_PAGE_SIZE):
        yield from page
        if len(page) < STATUS_PAGE_SIZE:
            return
        after = page[-1].name


def read_subscription_statuses(
    store: ServiceStore, tenant_id: str, after: str, limit: int
) -> list[SubscriptionStatus]:
    """Return one page of subscription statuses by name, after the name `after`."""
    head = store.head()
    return [
        _make_status(store, state, head) for state in store.subscriptions(tenant_id, after, limit)
    ]


def _make_status(store: ServiceStore, state: SubscriptionState, head: int) -> SubscriptionStatus:
    query = Query.from_mapping(decode_stored_json(state.query)) if state.query else Query()
    after = max(state.position, query.min_position or 0)
    events, seconds = measure_lag(store, state.tenant_id, query, after, head)
    return SubscriptionStatus(
        **msgspec.structs.asdict(state), head=head, lag_events=events, lag_seconds=seconds
    )


def measure_lag(
    store: Store, tenant_id: str, query: Query, after: int, head: int
) -> tuple[int, float]:
    """Return the lag of a cursor in positions and in seconds, both 0 if no event is pending.

    The positions are counted from the first pending event to the head, so there are at most as
    many pending events. The seconds are the age of that event.
    """
    pending = store.select(tenant_id, query, after, head, 1) if after < head else []
    if not pending:
        return 0, 0.0
    recorded_us = parse_us(pending[0].recorded_at) or 0
    seconds = max(0.0, time.time() - recorded_us / 1_000_000)
    return head - pending[0].position + 1, seconds


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


class Subscription:
    """A durable subscription: its cursor advances only after a batch was processed.

    Iterate over it, or `run` a handler. A lease ensures one owner at a time; others wait for it.

    Args:
        store: The store of the log.
        tenant_id: The tenant whose events are read.
        name: The name under which the cursor is stored.
        query: The events to receive.
        start: The position after which a new subscription starts, or `"head"`.
        lease_s: How long the lease lasts without being renewed.
        poll_s: How often to look for new events if no wake-up arrives.
        idle_timeout: Seconds without an event after which the iteration ends; None: never.
        backoff_s: The delay after the first failure of a handler; it doubles each time.
        backoff_cap_s: The longest such delay.
        tail_class: The class of the tail that reads the log.
        telemetry: Receives an event for every failure.

    Raises:
        Conflict: The subscription exists with another query.
        LogIdentityChanged: The log was restored or replaced since the cursor was stored.

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
        backoff_s: float = 0.2,
        backoff_cap_s: float = 30.0,
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
        self._backoff = Backoff(first_s=backoff_s, cap_s=backoff_cap_s)
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
        with self._hold_lease() as lease_and_keeper:
            if lease_and_keeper is None:
                return
            lease, keeper = lease_and_keeper
            self._lease = lease
            # Another owner may have advanced the cursor while this one waited for the lease.
            self._cursor = self._open_cursor()
            self._tail = self._make_tail(lease)
            for batch in self._tail:
                yield batch
                keeper.check()  # the consumer may have forked: the lease is not the child's
                self._store_cursor(batch[-1].position, batch[-1].event_id, lease)
            # At the end even a short skip is worth a write: no later one will include it.
            self._skip_to(self._tail.position, lease, min_skip=1)

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

    def _skip_to(self, position: int, lease: Lease, *, min_skip: int) -> None:
        """Advance the cursor past events without a match, so that no restart rescans them."""
        if position - self._cursor.position >= min_skip:
            self._store_cursor(position, self._store.event_id_at(position) or "", lease)

    def _store_cursor(self, position: int, last_event_id: str, lease: Lease) -> None:
        # The cursor keeps the identity from when it was opened, so a restored log is detected.
        cursor = msgspec.structs.replace(
            self._cursor, position=position, last_event_id=last_event_id
        )
        # With the lease, so that the store refuses it from an owner that has been replaced.
        self._store.put_cursor(cursor, lease=lease, reset=False)
        self._cursor = cursor

    def run(self, handler: Callable[[Batch], object]) -> None:
        """Call a handler for each batch until stopped or idle; retry a batch that fails.

        If the lease is lost, it waits for the lease again. If the store fails or is busy, it
        retries.

        Raises:
            BackendFailure: The log was closed.
            LogIdentityChanged: The log was restored or replaced.

        Example:
            log.subscribe("mailer", idle_timeout=0.1).run(lambda batch: print(len(batch)))
        """
        while True:
            try:
                return self._run_once(handler)
            except LeaseLost as error:
                # No delay: the next run begins with waiting for the lease.
                self._report(error, 0.0)
            except SeriatimError as error:
                if not _is_transient(error):
                    self._report(error, None)
                    raise
                delay = max(self._backoff.first_s, error.retry_after_s)
                self._report(error, delay)
                if self._stopped.wait(delay):
                    return None

    def _run_once(self, handler: Callable[[Batch], object]) -> None:
        for batch in self:
            # The lease is renewed in the background, so that the batch stays with this owner.
            while (delay := self._call_handler(handler, batch)) is not None:
                if self._stopped.wait(delay):
                    return  # without requesting the next batch, which would confirm this one
            self.failures = 0

    def _call_handler(self, handler: Callable[[Batch], object], batch: Batch) -> float | None:
        """Call a handler; return the seconds until the next attempt, or None if it succeeded."""
        try:
            handler(batch)
        except LogIdentityChanged:
            raise  # an operator must decide what to do with a restored or replaced log
        except Exception as error:  # noqa: BLE001 - whatever it is, the batch is retried
            self.failures += 1
            delay = self._backoff.delay_s(self.failures)
            self._report(error, delay, batch[0].position)
            return delay
        return None

    def _report(self, error: Exception, delay: float | None, position: int | None = None) -> None:
        """Log a failure, emit a telemetry event, and store it with the subscription.

        `delay` is the time until the next attempt, or None if there is none. The backoff limits
        how often this happens.
        """
        self.last_error = error
        reason = summarize_error(error)
        event = "failed" if position is None else f"failed on the append at position {position}"
        next_step = "giving up" if delay is None else f"next attempt in {delay:g} s"
        logger.warning(
            "subscription %r of tenant %r %s (attempt %d, %s): %s",
            self.name,
            self._tenant_id,
            event,
            max(self.failures, 1),
            next_step,
            reason,
        )
        if self._telemetry.active:
            metadata = {
                "tenant_id": self._tenant_id,
                "subscription": self.name,
                "error": type(error).__name__,
                "error_code": error.code if isinstance(error, SeriatimError) else None,
            }
            counts = {"failures": float(self.failures), "delay_s": delay or 0.0}
            self._telemetry.emit("subscription.exception", counts, metadata)
        self._store_failure(reason)

    def _store_failure(self, reason: str) -> None:
        lease = self._lease
        if lease is None:
            return
        try:
            self._store.record_failure(lease, self.name, max(self.failures, 1), reason)
        except Exception as error:  # noqa: BLE001 - the failure itself was logged
            logger.debug(
                "the last error of subscription %r was not stored: %s",
                self.name,
                summarize_error(error),
            )

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


def _is_transient(error: SeriatimError) -> bool:
    """Return whether a run continues after an error: not on a closed or a restored log."""
    if isinstance(error, BackendFailure):
        # An operator may repair even a permanent failure while the subscription keeps retrying.
        return not isinstance(error, LogClosed)
    return error.retryable
