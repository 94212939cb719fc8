"""Following the log: catch up, then live, one committed append as one batch, nothing skipped.

The life of a durable subscription:

    waiting for the lease -> catching up -> live -> (handler fails -> backing off -> same batch)
                                  ^                                          |
                                  +------------------------------------------+

Wake-ups are hints: a lost one costs the poll interval, never an event.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from seriatim.core.canonical import canonical_text
from seriatim.core.errors import BackendFailure, LeaseLost, LogIdentityChanged, SeriatimError
from seriatim.core.query import Query
from seriatim.core.reasons import reason_of
from seriatim.log.arguments import bad
from seriatim.log.batches import Batch, matching_appends
from seriatim.log.cursors import check_cursor, check_same_log, new_cursor, reset_subscription
from seriatim.store.port import Closed, Cursor, Lease, Store, lease_name
from seriatim.telemetry.bus import Telemetry

logger = logging.getLogger("seriatim")

_SKIP_WORTH_STORING = 1000


class Tail:
    """An iterator over batches from a position on; it ends when `stop` is called or idle too long.

    `idle_timeout` ends it after so many seconds without an event; None follows for ever.
    """

    def __init__(  # noqa: PLR0913 - where, what, from when, for how long
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
        if position > store.head():
            raise bad("after", "must not lie beyond the head")
        self.position = position
        # What stands there now: a log restored meanwhile has another event, or none.
        self._tip = _tip(store, position)
        self._identity = store.identity()
        self._store = store
        self._tenant_id = tenant_id
        self._query = query
        self._idle_timeout = idle_timeout
        self._poll_s = poll_s
        self._on_scanned = on_scanned
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the iteration, from any thread, within one poll interval."""
        self._stopped.set()

    def __iter__(self) -> Iterator[Batch]:
        """Yield each committed append once, in order."""
        idle_since = time.monotonic()
        while not self._stopped.is_set():
            head = self._store.head()
            check_same_log(self._store, self._identity, self.position, self._tip, head)
            for batch in matching_appends(
                self._store, self._tenant_id, self._query, self.position, head
            ):
                yield batch
                # Only now: a consumer that leaves at the yield has not had this batch.
                self.position, self._tip = batch[-1].position, batch[-1].event_id
                idle_since = time.monotonic()
                if self._stopped.is_set():
                    return
            if head > self.position:
                self.position, self._tip = head, _tip(self._store, head)
            if self._on_scanned is not None:
                self._on_scanned(self.position)
            idle = time.monotonic() - idle_since
            if self._idle_timeout is not None and idle >= self._idle_timeout:
                return
            left = self._poll_s if self._idle_timeout is None else self._idle_timeout - idle
            self._store.wait(self.position, min(self._poll_s, left))


def _tip(store: Store, position: int) -> str:
    return store.event_id_at(position) or "" if position else ""


class Subscription:
    """A durable, named way through the log: its cursor moves only after a batch was handled.

    Iterate over it, or `run` a handler; either way one owner works at a time, others wait.
    """

    def __init__(  # noqa: PLR0913 - where, what, and its manners
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
        follow: type[Tail] = Tail,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._telemetry = telemetry or Telemetry()
        self._lease: Lease | None = None
        self.name = name
        self._follow = follow
        self.failures = 0
        self.last_error: Exception | None = None
        self._store = store
        self._tenant_id = tenant_id
        self._query = query
        self._start = start
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._idle_timeout = idle_timeout
        self._backoff_s = backoff_s
        self._backoff_cap_s = backoff_cap_s
        self._stopped = threading.Event()
        self._tail: Tail | None = None
        self._unreleased: list[tuple[int, str]] = []  # processes and owners that may hold the lease
        self._cursor = self._open_cursor()

    def new_owner(self) -> str:
        """Return an owner for one acquisition of the lease.

        It is a new one, also in a forked child, unless an acquisition of this process ended without
        giving the lease back: that owner may have it again at once.
        """
        while self._unreleased:
            pid, owner = self._unreleased.pop()
            if pid == os.getpid():
                return owner
        return f"{os.getpid()}-{secrets.token_hex(6)}"

    def keep_owner(self, owner: str) -> None:
        """Let the next acquisition take over a lease that could not be given back."""
        self._unreleased.append((os.getpid(), owner))

    def _open_cursor(self) -> Cursor:
        wanted = canonical_text(self._query.as_dict())
        cursor = self._store.cursor(self._tenant_id, "subscription", self.name)
        if cursor is None:
            position = self._store.head() if self._start == "head" else self._start
            made = new_cursor(
                self._store, self._tenant_id, "subscription", self.name, position, wanted
            )
            cursor = self._store.add_cursor(made)  # another first opener may have been faster
        check_cursor(self._store, cursor, wanted)
        return cursor

    @property
    def position(self) -> int:
        """The position up to which batches were handled, as stored."""
        cursor = self._store.cursor(self._tenant_id, "subscription", self.name)
        return 0 if cursor is None else cursor.position

    def reset(self, position: int) -> None:
        """Move the cursor anywhere, also backwards, and accept the log's present identity."""
        reset_subscription(self._store, self._tenant_id, self.name, position, self._query)

    def stop(self) -> None:
        """End the iteration or the run, from any thread."""
        self._stopped.set()
        if self._tail is not None:
            self._tail.stop()

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches; asking for the next one says that the last was handled."""
        with _Ownership(self) as lease:
            if lease is None:
                return
            self._lease = lease
            # Another owner may have moved the cursor while this one waited.
            self._cursor = self._open_cursor()
            self._tail = self._make_tail(lease)
            lease_pid = os.getpid()
            for batch in self._tail:
                yield batch
                self._check_process(lease_pid)
                self._move(batch[-1].position, batch[-1].event_id, lease)
            self._skip_to(self._tail.position, lease, worth=1)

    def _check_process(self, lease_pid: int) -> None:
        """Refuse to go on in a forked child: the lease is its parent's."""
        if os.getpid() != lease_pid:
            msg = f"the lease of subscription {self.name!r:.80} belongs to the parent process"
            raise LeaseLost(msg)

    def _make_tail(self, lease: Lease) -> Tail:
        tail = self._follow(
            self._store,
            self._tenant_id,
            self._query,
            self._cursor.position,
            idle_timeout=self._idle_timeout,
            poll_s=self._poll_s,
            on_scanned=lambda position: self._skip_to(position, lease, worth=_SKIP_WORTH_STORING),
        )
        if self._stopped.is_set():
            tail.stop()
        return tail

    def _skip_to(self, position: int, lease: Lease, *, worth: int) -> None:
        """Pass over what the query does not match, so that a restart need not scan it again."""
        if position - self._cursor.position >= worth:
            self._move(position, self._store.event_id_at(position) or "", lease)

    def _move(self, position: int, tip: str, lease: Lease) -> None:
        # The log's identity stays that of the opening: a log restored meanwhile is noticed.
        cursor = msgspec.structs.replace(self._cursor, position=position, tip=tip)
        self._store.put_cursor(cursor, lease=lease, reset=False)
        self._cursor = cursor

    def run(self, handler: Callable[[Batch], object]) -> None:
        """Call a handler for each batch until stopped or idle; a failing one gets the same again.

        A lost lease means waiting for it again, a store that fails or is busy means trying again;
        a closed or restored log ends it.
        """
        while True:
            try:
                return self._run_once(handler)
            except LeaseLost as error:
                self._report(error, 0.0)
            except SeriatimError as error:
                if not _may_pass(error):
                    self._report(error, None)
                    raise
                delay = max(self._backoff_s, error.retry_after_s)
                self._report(error, delay)
                if self._stopped.wait(delay):
                    return None

    def _run_once(self, handler: Callable[[Batch], object]) -> None:
        for batch in self:
            while (delay := self._handled(handler, batch)) is not None:
                if self._stopped.wait(delay):
                    return
            self.failures = 0

    def _handled(self, handler: Callable[[Batch], object], batch: Batch) -> float | None:
        """Call a handler; return how long to wait before the next attempt, None if it succeeded."""
        try:
            handler(batch)
        except LogIdentityChanged:
            raise  # only an operator can tell what to do with a restored or replaced log
        except Exception as error:  # noqa: BLE001 - whatever it is, the batch stays undelivered
            self.failures += 1
            grown = self._backoff_s * 2.0 ** min(self.failures - 1, 16)
            delay = float(min(self._backoff_cap_s, grown))
            self._report(error, delay, batch[0].position)
            return delay
        return None

    def _report(self, error: Exception, delay: float | None, position: int | None = None) -> None:
        """Log a failure, tell telemetry, and store it; the backoff bounds how often that happens.

        `delay` is the time before the next attempt; None: there is none.
        """
        self.last_error = error
        reason = reason_of(error)
        what = "failed" if position is None else f"failed on the append at position {position}"
        on = "it ends" if delay is None else f"next attempt in {delay:g} s"
        logger.warning(
            "subscription %r of tenant %r %s (attempt %d, %s): %s",
            self.name,
            self._tenant_id,
            what,
            max(self.failures, 1),
            on,
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
            logger.debug("the last error of %r was not stored: %s", self.name, reason_of(error))

    def start(self, handler: Callable[[Batch], object]) -> threading.Thread:
        """Run a handler in a thread of its own."""
        thread = threading.Thread(
            target=self.run, args=(handler,), name=f"seriatim-{self.name}", daemon=True
        )
        thread.start()
        return thread


def _may_pass(error: SeriatimError) -> bool:
    """Tell whether a run is tried again: neither on a closed log nor on a restored one."""
    if isinstance(error, BackendFailure):
        return not isinstance(error, Closed)  # an operator may mend even what lasts
    return error.retryable


class _Ownership:
    """Holds a subscription's lease while it runs, renewing it in the background."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._lease: Lease | None = None
        self._owner = subscription.new_owner()
        self._pid = os.getpid()

    def _claim(self) -> Lease | None:
        one = self._subscription
        name = lease_name(one.name)
        try:
            return one._store.claim_lease(one._tenant_id, name, self._owner, one._lease_s)  # noqa: SLF001
        except SeriatimError:
            one.keep_owner(self._owner)  # its answer may be lost, and the lease ours
            raise

    def __enter__(self) -> Lease | None:
        one = self._subscription
        while not one._stopped.is_set():  # noqa: SLF001 - two halves of one thing
            lease = self._claim()
            if lease is not None:
                self._lease = lease
                self._thread = threading.Thread(target=self._renew, args=(lease,), daemon=True)
                self._thread.start()
                return lease
            one._stopped.wait(min(one._poll_s, one._lease_s / 4))  # noqa: SLF001
        return None

    def _renew(self, lease: Lease) -> None:
        one = self._subscription
        while not self._done.wait(one._lease_s / 3):  # noqa: SLF001
            try:
                if not one._store.renew_lease(lease, one._lease_s):  # noqa: SLF001
                    return  # the next move of the cursor is refused and says so
            except Exception as error:  # noqa: BLE001 - tried again; the cursor is fenced anyway
                one.last_error = error

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._done.set()
        if self._pid != os.getpid():
            return  # a forked child: the thread and the lease are its parent's
        if self._thread is not None:
            self._thread.join()
        if self._lease is not None and kind is not LeaseLost:
            try:
                self._subscription._store.release_lease(self._lease)  # noqa: SLF001
            except SeriatimError:
                self._subscription.keep_owner(self._owner)
                raise
