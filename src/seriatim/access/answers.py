"""Answers that are kept: a command that appends nothing runs once, and its twins get its answer.

Appends have their command records in the log itself, in their own transaction. What is done here
can be done twice without harm, so a runner that died may be followed by another.
"""

from __future__ import annotations

import secrets

import msgspec

from seriatim.access.desk import Desk
from seriatim.core.errors import IdempotencyKeyReuse

PATIENCE_S = 60.0  # after so long without an answer its runner counts as dead


class Answer(msgspec.Struct, frozen=True):
    """What was answered, word for word."""

    status: int
    body: str


class Reserved(msgspec.Struct, frozen=True):
    """The right to run a command; `owner` tells this runner from one that comes after it."""

    command_key: str
    owner: str


class Answers(Desk):
    """The answers of a service."""

    def reserve(self, command_key: str, request_hash: str) -> Reserved | Answer | None:
        """Return the right to run, the answer that there is, or None while a twin runs."""
        owner = secrets.token_hex(8)
        got = self._run(
            "reserve",
            command_key=command_key,
            request_hash=request_hash,
            owner=owner,
            patience_us=int(PATIENCE_S * 1_000_000),
        )
        if got:
            return Reserved(command_key, owner)
        found = self._look("answer", command_key=command_key)
        if not found:
            return None  # its runner has just given up: the next try may run
        known_hash, status, body = found[0]
        if known_hash != request_hash:
            raise IdempotencyKeyReuse("the Idempotency-Key was used for another request")
        return None if status is None else Answer(status, body)

    def keep(self, reserved: Reserved, answer: Answer) -> None:
        """Keep what was answered."""
        self._run(
            "keep_answer",
            command_key=reserved.command_key,
            owner=reserved.owner,
            status=answer.status,
            body=answer.body,
        )

    def give_up(self, reserved: Reserved) -> None:
        """Let a twin run: nothing was done."""
        self._run("forget_answer", command_key=reserved.command_key, owner=reserved.owner)

    def purge_answers(self, older_than_s: float) -> int:
        """Forget answers that are older than this."""
        return len(self._run("purge_answers", older_us=int(older_than_s * 1_000_000)))
