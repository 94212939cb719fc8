"""The writer's side of group commit on Postgres: the lean way first, the decided way when it must.

Lean: one statement locks, numbers and inserts the whole group; unique indexes and the group's
trigger are trusted to object. When they do, or when a request has a context or a command, the
group is decided in core with the lock held, and each request gets its own answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from seriatim.config import Settings
from seriatim.core.errors import SeriatimError
from seriatim.core.event import AppendResult
from seriatim.core.kinds import Rules
from seriatim.core.request import Request
from seriatim.store.port import Outcome
from seriatim.store.postgres.batch import append_batch
from seriatim.store.postgres.connecting import Address, Connection, Hello, is_dead
from seriatim.store.postgres.deciding import Decision, drive
from seriatim.store.postgres.exchange import Exchange, receipts
from seriatim.store.postgres.failures import (
    CANCELLED,
    LOCK_BUSY,
    ROLLED_BACK,
    TO_BE_DECIDED,
    failure,
)
from seriatim.store.postgres.lean import Reply, send
from seriatim.store.postgres.lock import bounds, held_too_long, milliseconds, statement_ms
from seriatim.store.postgres.packed import BATCH_FROM, Packed, is_light, is_ordered, is_small
from seriatim.store.postgres.statements import statements

Held = tuple[Connection, Hello]
_IDLE_MAX = 4


class Writer:
    """Commits groups, each on a connection that is its own for so long."""

    def __init__(
        self,
        address: Address,
        settings: Settings,
        opener: Callable[[], Held],
        rules: Callable[[], Rules],
        hint: Callable[[], None],
    ) -> None:
        self._address = address
        self._settings = settings
        self._open = opener
        self._rules = rules
        self._hint = hint
        self._sql = statements(address.schema)
        self._append_group = self._sql["append_group"].encode()
        self._append_batch = self._sql["append_batch"].encode()
        self._wait_ms = milliseconds(settings.lock_wait_s)
        self._begin = f"begin isolation level read committed;{bounds(settings)}".encode()
        self._limit = self._sql["limit_statement"].encode(), b"%d" % statement_ms(settings)
        self._start_fresh()

    def _start_fresh(self) -> None:
        self._idle: list[Held] = []
        self._closed = False

    def _take_idle(self) -> Held | None:
        """Take a connection that nobody uses and that is alive."""
        while True:
            try:
                held = self._idle.pop()  # atomic, and the warmest one
            except IndexError:
                return None
            if not is_dead(held[0]):
                return held
            held[0].close()

    def _give_back(self, held: Held) -> None:
        if self._closed or held[0].closed or len(self._idle) >= _IDLE_MAX:
            held[0].close()
        else:
            self._idle.append(held)

    @contextmanager
    def _lent(self) -> Iterator[Held]:
        held = self._take_idle() or self._open()
        try:
            yield held
        finally:
            self._give_back(held)

    def begin(self, group: Sequence[Request]) -> Exchange | None:
        """Send a group the lean way, if all of it may go there and a connection is at hand."""
        fits = is_small if len(group) == 1 else is_light
        if not all(map(fits, group)) or has_twins(group) or not is_ordered(group):
            return None
        held = self._take_idle()
        if held is None:
            return None
        connection, hello = held
        if not hello.sees_behind_lock:
            self._give_back(held)
            return None
        try:
            send(connection, self._append_group, self._limit, hello, self._wait_ms, group)
        except psycopg.Error:  # it was not sent whole, so nothing is stored
            connection.close()
            return None
        return Exchange(connection, group, lambda: self._done_with(held), self._settings)

    def _done_with(self, held: Held) -> None:
        self._give_back(held)
        self._hint()

    def commit(self, group: Sequence[Request]) -> list[Outcome]:
        """Give each request of a group its own answer."""
        ways: dict[str, list[int]] = {"lean": [], "decide": []}
        for index, request in enumerate(group):
            packed: Packed = request.packed
            lean = packed.rows and (packed.head is None or len(group) == 1)
            ways["lean" if lean else "decide"].append(index)
        lean_ones = [group[index] for index in ways["lean"]]
        if has_twins(lean_ones) or not is_ordered(lean_ones):
            ways["decide"] = sorted(ways["decide"] + ways["lean"])
            ways["lean"] = []
        answers: dict[int, Outcome] = {}
        for way, indexes in ways.items():
            if indexes:
                requests = [group[index] for index in indexes]
                answers.update(zip(indexes, self._commit_by(way, requests), strict=True))
        self._hint()
        return [answers[index] for index in range(len(group))]

    def _commit_by(self, way: str, requests: list[Request]) -> list[Outcome]:
        """Try a way until the lock is had or the time is up."""
        deadline = time.monotonic() + self._settings.timeout_s
        while True:
            try:
                with self._lent() as (connection, hello):
                    try:
                        if way == "lean" and hello.sees_behind_lock:
                            return self._lean(connection, hello, requests)
                        return self._decided(connection, hello, requests)
                    except psycopg.Error as error:
                        again = error.sqlstate == LOCK_BUSY or error.sqlstate in ROLLED_BACK
                        if error.sqlstate in TO_BE_DECIDED and way != "decide":
                            way = "decide"
                        elif error.sqlstate == CANCELLED:  # by the server, which stored nothing
                            return [held_too_long(self._settings)] * len(requests)
                        elif not again or time.monotonic() >= deadline:
                            found = failure(
                                error, "appending", sent=True, schema=self._address.schema
                            )
                            return [found] * len(requests)
            except SeriatimError as error:
                return [error] * len(requests)

    def _lean(self, connection: Connection, hello: Hello, requests: list[Request]) -> list[Outcome]:
        if sum(len(request.events) for request in requests) >= BATCH_FROM:
            answer = append_batch(
                connection, self._append_batch, self._limit, hello, self._wait_ms, requests
            )
            return receipts(requests, *answer)
        send(connection, self._append_group, self._limit, hello, self._wait_ms, requests)
        reply = Reply(connection)
        reply.wait()
        return receipts(requests, *reply.numbers())

    def _decided(
        self, connection: Connection, hello: Hello, requests: list[Request]
    ) -> list[Outcome]:
        seen = {key: one for request in requests for key, one in request.packed.seen.items()}
        schema, settings = self._address.schema, self._settings
        decision = Decision(schema, hello, requests, self._rules(), seen, settings)
        try:
            connection.execute(self._begin)
            answers = drive(connection, decision.steps())
        except psycopg.Error as error:
            _roll_back(connection)
            if error.sqlstate in TO_BE_DECIDED or error.sqlstate in (LOCK_BUSY, CANCELLED):
                raise
            # Nothing was committed yet.
            raise failure(error, "appending", schema=self._address.schema) from error
        except BaseException:
            _roll_back(connection)
            raise
        stored = any(isinstance(answer, AppendResult) and not answer.replayed for answer in answers)
        connection.execute("commit" if stored else "rollback")
        return answers

    def after_fork(self) -> None:
        """Forget the parent's connections; psycopg closes none that another process made."""
        self._start_fresh()

    def close(self) -> None:
        """Close the connections that are idle, and the others when they come back."""
        self._closed = True
        while (held := self._take_idle()) is not None:
            held[0].close()


def has_twins(requests: Sequence[Request]) -> bool:
    """Tell whether two appends share a key or an id, or were checked under different rules."""
    if len(requests) <= 1:
        return False
    ids = [event.event_key for request in requests for event in request.events]
    keys = [
        event.idempotency_index
        for request in requests
        for event in request.events
        if event.idempotency_index is not None
    ]
    return (
        len(set(ids)) != len(ids)
        or len(set(keys)) != len(keys)
        or len({request.rules_version for request in requests}) > 1
    )


def _roll_back(connection: Connection) -> None:
    try:
        connection.execute("rollback")
    except psycopg.Error:
        connection.close()
