"""A lean group between its sending and its answers, whoever waits for them."""

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
    """One group under way on a connection that is its own until it is answered."""

    def __init__(
        self,
        connection: Connection,
        group: Sequence[Request],
        done: Callable[[], None],
        settings: Settings,
    ) -> None:
        self._connection = connection
        self._socket = connection.pgconn.socket  # kept: libpq forgets it when it loses the server
        self._reply = Reply(connection)
        self._group = group
        self._done = done
        self._settings = settings

    def fileno(self) -> int:
        """Return the socket to wait for."""
        return self._socket

    def flushed(self) -> bool:
        """Send what is still to be sent; True when all of it is."""
        try:
            return self._connection.pgconn.flush() == 0
        except psycopg.Error:
            return True  # the answer will say what is wrong

    def answered(self) -> bool:
        """Take in what has come; True when the answer is whole."""
        try:
            self._connection.pgconn.consume_input()
            return self._reply.whole()
        except psycopg.Error:
            return True  # the server is lost, and the answer with it

    def outcomes(self) -> list[Outcome]:
        """Return each request's own answer; what must be decided with the lock held is deferred."""
        try:
            head, recorded_us, seqs = self._reply.numbers()
        except psycopg.Error as error:
            if error.sqlstate in TO_BE_DECIDED:
                raise Deferred([_to_be_decided(one) for one in self._group]) from error
            if error.sqlstate == LOCK_BUSY:
                raise Deferred(self._group) from error
            if error.sqlstate == CANCELLED:
                return [held_too_long(self._settings)] * len(self._group)
            return [failure(error, "appending", sent=True)] * len(self._group)
        finally:
            self._done()
        return receipts(self._group, head, recorded_us, seqs)

    def wait(self, timeout: float) -> list[Outcome]:
        """Wait for the answers; when time is up the connection is given up with them."""
        try:
            self._reply.wait(time.monotonic() + timeout)
        except psycopg.Error:
            pass  # the answer will say what is wrong
        except BaseException as error:
            self._connection.close()
            self._done()
            if isinstance(error, TimeoutError):
                raise unanswered() from None
            raise
        return self.outcomes()

    def abandon(self) -> None:
        """Let go of it: nobody will ask for its answers."""
        self._connection.close()


def receipts(
    group: Sequence[Request], head: int, recorded_us: int, seqs: list[int | None]
) -> list[Outcome]:
    """Give each append of a committed group its receipt."""
    return [place.result(recorded_us) for place in placed_in_order(group, head + 1, seqs)]


def _to_be_decided(request: Request) -> Request:
    """Return an append that no longer goes the lean way."""
    packed = Packed(tagged=request.packed.tagged, seen=request.packed.seen)
    return msgspec.structs.replace(request, packed=packed)
