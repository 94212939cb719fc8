"""Answers that are kept: a command that appends nothing runs once, and its twins get its answer.

Appends have their command records in the log itself, in their own transaction. What is done here
can be done twice without harm, so a runner that died may be followed by another.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from seriatim.access.desk import Desk
from seriatim.core.errors import IdempotencyKeyReuse, LimitExceeded
from seriatim.store.engine import Engine

PATIENCE_S = 60.0  # after so long without an answer its runner counts as dead
_FULL_S = 1.0  # for so long a tenant that has no room is not counted again
_TENANTS_MAX = 10_000


class Answer(msgspec.Struct, frozen=True):
    """What was answered, word for word."""

    status: int
    body: str


class Command(msgspec.Struct, frozen=True):
    """A command as its twins know it: whose it is, its key, and what it asks for."""

    tenant_id: str
    key: str
    request_hash: str


class Reserved(msgspec.Struct, frozen=True):
    """The right to run a command; `owner` tells this runner from one that comes after it."""

    command_key: str
    owner: str


class Answers(Desk):
    """The answers of a service."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._room = _Room()

    def reserve(self, command: Command, at_most: int) -> Reserved | Answer | None:
        """Return the right to run, the answer that there is, or None while a twin runs.

        A tenant has so many answers at most. Nothing is written while a twin runs.
        """
        known = self._look("answer", command_key=command.key)
        if known and not _may_run(known[0]):
            return _answered(command, known[0])
        if not known:
            self._room.take(command.tenant_id, at_most, self._count)
        owner = secrets.token_hex(8)
        got = self._write(
            "reserve",
            command_key=command.key,
            tenant_id=command.tenant_id,
            request_hash=command.request_hash,
            owner=owner,
            patience_us=int(PATIENCE_S * 1_000_000),
        )
        if got:
            return Reserved(command.key, owner)
        known = self._look("answer", command_key=command.key)
        # Without an answer its runner has just given up: the next try may run.
        return _answered(command, known[0]) if known else None

    def _count(self, tenant_id: str, at_most: int) -> int:
        with self._apart().transaction(write=False) as session:
            values = {"tenant_id": tenant_id, "at_most": at_most}
            return int(session.run(self._sql["count_answers"], values)[0][0])

    def _write(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Write where nobody waits to be let in."""
        with self._apart().at_once() as session:
            return session.run(self._sql[statement], values)

    def keep(self, reserved: Reserved, answer: Answer) -> None:
        """Keep what was answered."""
        self._write(
            "keep_answer",
            command_key=reserved.command_key,
            owner=reserved.owner,
            status=answer.status,
            body=answer.body,
        )

    def give_up(self, reserved: Reserved) -> None:
        """Let a twin run: nothing was done, or nothing is kept of it."""
        self._write("forget_answer", command_key=reserved.command_key, owner=reserved.owner)

    def purge_answers(self, older_than_s: float) -> int:
        """Forget answers that are older than this."""
        return len(self._write("purge_answers", older_us=int(older_than_s * 1_000_000)))


def _may_run(row: tuple[Any, ...]) -> bool:
    """Tell whether the runner of a command is dead, as far as anybody can know."""
    _, status, _, over = row
    return status is None and bool(over)


def _answered(command: Command, row: tuple[Any, ...]) -> Answer | None:
    known_hash, status, body, _ = row
    if known_hash != command.request_hash:
        raise IdempotencyKeyReuse("the Idempotency-Key was used for another request")
    return None if status is None else Answer(status, body)


class _Room:
    """How many more answers tenants may have, counted the more often the fewer they are.

    Each count lets a tenth of what is free pass uncounted: ten processes that count at the same
    moment stay within the bound together.
    """

    _SHARE = 10

    def __init__(self) -> None:
        self._left: dict[str, int] = {}
        self._full: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, tenant_id: str, at_most: int, count: Callable[[str, int], int]) -> None:
        """Take room for one, or refuse it."""
        with self._lock:
            if (left := self._left.get(tenant_id, 0)) > 0:
                self._left[tenant_id] = left - 1
                return
            if self._full.get(tenant_id, 0.0) > time.monotonic():
                raise _full(at_most)
        free = at_most - count(tenant_id, at_most)
        with self._lock:
            for known in (self._left, self._full):
                if len(known) >= _TENANTS_MAX:
                    known.clear()
            if free <= 0:
                self._full[tenant_id] = time.monotonic() + _FULL_S
                raise _full(at_most)
            self._left[tenant_id] = free // self._SHARE


def _full(bound: int) -> LimitExceeded:
    msg = f"tenant_answers: {bound} answers to commands with an Idempotency-Key are kept already"
    details = {"limit": "tenant_answers", "bound": bound, "retry_after_s": 60}
    return LimitExceeded(msg, details=details, retryable=True)
