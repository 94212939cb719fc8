"""Leases that are held while work runs: wait for one, renew it in a thread, notice its loss."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Self, TypeVar

from seriatim.core.errors import LeaseLost

T = TypeVar("T")


def wait_for_lease(
    claim: Callable[[], T | None],
    *,
    stopped: Callable[[], bool],
    interval_s: float,
    on_wait: Callable[[], None] | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> T | None:
    """Try to claim a lease until it is granted or the caller is stopped.

    Args:
        claim: Claims the lease; returns None while another owner holds it.
        stopped: Ends the wait when it returns true.
        interval_s: The time between two attempts, in seconds.
        on_wait: Called once, when another owner holds the lease.
        sleep: Waits for a number of seconds, or until the caller is stopped.

    Returns:
        The lease; None if the caller was stopped first.

    """
    reported = False
    while not stopped():
        lease = claim()
        if lease is not None:
            return lease
        if on_wait is not None and not reported:
            reported = True
            on_wait()
        sleep(interval_s)
    return None


class LeaseKeeper:
    """Renews a lease in a daemon thread while a block runs.

    The thread ends when the lease is lost. Losing it interrupts nothing: writes are fenced by the
    token of the lease, and `check` raises before the work has effects that are not.

    In a forked child the lease belongs to the parent: `check` raises `LeaseLost`, and the end of
    the block releases nothing.

    Args:
        renew: Extends the lease; returns False or raises `LeaseLost` if another owner holds it.
        interval_s: The time between two renewals, in seconds.
        name: The lease as the subject of error messages, such as "the publisher's lease".
        on_error: Called in the thread with an error of `renew`, which is tried again after the
            interval.
        release: Ends the lease. Called after the block by its own thread, unless the lease was lost
            or the process is a forked child.
        on_end: Called in the thread when it ends, for example to close its connection.
    """

    def __init__(
        self,
        renew: Callable[[], bool],
        interval_s: float,
        *,
        name: str,
        on_error: Callable[[Exception], None],
        release: Callable[[], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self._renew = renew
        self._interval_s = interval_s
        self._name = name
        self._on_error = on_error
        self._release = release
        self._on_end = on_end
        self._lost: LeaseLost | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"renew {name}", daemon=True)
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop the thread, wait for it, and release the lease."""
        if self._pid != os.getpid():
            return  # thread and lease belong to the parent
        # A renewal that is still running must end first: it would extend the released lease.
        self._ended.set()
        self._thread.join()
        # A fenced write may have found the loss before the thread did.
        taken_over = self.lost or (kind is not None and issubclass(kind, LeaseLost))
        if self._release is not None and not taken_over:
            self._release()

    @property
    def lost(self) -> bool:
        """Whether another owner is known to hold the lease."""
        return self._lost is not None

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is known to be lost, or in a forked child."""
        if self._pid != os.getpid():
            raise LeaseLost(f"{self._name} belongs to the parent process: claim it in this one")
        if self._lost is not None:
            raise self._lost

    def confirm(self) -> None:
        """Renew the lease now; raise `LeaseLost` if another owner holds it.

        Use it before an effect that no token fences. After a suspension that outlasts the lease,
        the work may continue before the thread has noticed the loss, so `check` is not enough.
        """
        self.check()
        self._renew_once()
        self.check()

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._interval_s):
                try:
                    if not self._renew_once():
                        return
                except Exception as error:  # noqa: BLE001 - until it is lost, the lease is renewed
                    self._on_error(error)
        finally:
            if self._on_end is not None:
                self._on_end()

    def _renew_once(self) -> bool:
        """Renew the lease; return False, and remember the loss, if another owner holds it."""
        try:
            if self._renew():
                return True
            self._lost = LeaseLost(f"{self._name} belongs to another owner now")
        except LeaseLost as error:
            self._lost = error
        return False
