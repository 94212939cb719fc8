"""A group in flight on the fast path, for threads and event loops."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import psycopg

from seriatim.config import Settings
from seriatim.core.request import Request
from seriatim.store.grouping import placed_in_order
from seriatim.store.port import Deferred, Outcome, unanswered
from seriatim.store.postgres.connecting import Connection
from seriatim.store.postgres.failures import CANCELLED, LOCK_BUSY, TO_BE_DECIDED, failure
from seriatim.store.postgres.lean import Reply
from seriatim.store.postgres.lock import held_too_long
from seriatim.store.postgres.packed import Packed


class Exchange:
    """A group in flight on a connection that it owns until the reply has arrived."""

    def __init__(
        self,
        connection: Connection,
        group: Sequence[Request],
        release: Callable[[], None],
        settings: Settings,
    ) -> None:
        self._connection = connection
        self._socket = connection.pgconn.socket  # kept: libpq drops it when the connection is lost
        self._reply = Reply(connection)
        self._group = group
        self._release = release
        self._settings = settings

    def fileno(self) -> int:
        """Return the file descriptor of the socket to watch."""
        return self._socket

    def flushed(self) -> bool:
        """Send buffered bytes without blocking; return True when all are sent."""
        try:
            return self._connection.pgconn.flush() == 0
        except psycopg.Error:
            return True  # reading the reply reports the error

    def answered(self) -> bool:
        """Read available bytes without blocking; return True when the reply is complete."""
        try:
            self._connection.pgconn.consume_input()
            return self._reply.whole()
        except psycopg.Error:
            return True  # the connection is lost; `outcomes` reports it

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of each request; raise `Deferred` for the validated path."""
        try:
            head, recorded_us, seqs = self._reply.numbers()
        except psycopg.Error as error:
            if error.sqlstate in TO_BE_DECIDED:
                raise Deferred([_use_validated_path(one) for one in self._group]) from error
            if error.sqlstate == LOCK_BUSY:
                raise Deferred(self._group) from error
            if error.sqlstate == CANCELLED:
                return [held_too_long(self._settings)] * len(self._group)
            return [failure(error, "appending", sent=True)] * len(self._group)
        finally:
            self._release()
        return receipts(self._group, head, recorded_us, seqs)

    def wait(self, timeout: float) -> list[Outcome]:
        """Block until the reply is complete and return the outcomes.

        The connection is closed on a timeout, since the reply may still arrive on it.
        """
        try:
            self._reply.wait(time.monotonic() + timeout)
        except psycopg.Error:
            pass  # `outcomes` reports the error
        except BaseException as error:
            self._connection.close()
            self._release()
            if isinstance(error, TimeoutError):
                raise unanswered() from None
            raise
        return self.outcomes()

    def abandon(self) -> None:
        """Close the connection; the outcomes will not be read."""
        self._connection.close()


def receipts(
    group: Sequence[Request], head: int, recorded_us: int, seqs: list[int | None]
) -> list[Outcome]:
    """Build the receipts of a committed group."""
    return [place.result(recorded_us) for place in placed_in_order(group, head + 1, seqs)]


def _use_validated_path(request: Request) -> Request:
    """Return the append without encoded rows, so that it uses the validated path."""
    encoded = Packed(tagged=request.packed.tagged, seen=request.packed.seen)
    return msgspec.structs.replace(request, packed=encoded)
