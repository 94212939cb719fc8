"""Appends found again by the key or the command they were stored under."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seriatim.core.decide import key_reuse
from seriatim.core.event import AppendResult
from seriatim.core.ids import id_problem, key_problem, text_problem
from seriatim.log.arguments import bad

if TYPE_CHECKING:
    from seriatim.core.request import Command
    from seriatim.log.base import BaseLog
    from seriatim.store.port import StoredAppend


def stored_by_key(
    log: BaseLog, idempotency_key: str, producer_id: str | None
) -> StoredAppend | None:
    """Return the append stored under a key, after checking the arguments."""
    if problem := key_problem(idempotency_key):
        raise bad("idempotency_key", problem)
    if producer_id is not None and (problem := text_problem(producer_id)):
        raise bad("producer_id", problem)
    return log.store.append_by_key(log.tenant_id, producer_id, idempotency_key)


def stored_by_command(log: BaseLog, actor: str, endpoint: str, key: str) -> StoredAppend | None:
    """Return the append stored under a command, after checking the arguments."""
    for name, value in (("actor", actor), ("endpoint", endpoint)):
        if problem := id_problem(value):
            raise bad(name, problem)
    if problem := key_problem(key):
        raise bad("key", problem)
    return log.store.append_by_command(log.tenant_id, actor, endpoint, key)


def find_decided(
    log: BaseLog, idempotency_key: str | None, producer_id: str | None, command: Command | None
) -> AppendResult | None:
    """Return the receipt of what was decided under this command or key before.

    The command with another request raises `IdempotencyKeyReuse`.
    """
    prepared = log.appender.prepare_command(log.tenant_id, command)
    if prepared is not None:
        given = prepared.command
        stored = stored_by_command(log, given.actor, given.endpoint, given.key)
        if stored is not None:
            if stored.request_hash != prepared.request_hash:
                raise key_reuse(given.key)
            return receipt(stored)
    if idempotency_key is None:
        return None
    stored = stored_by_key(log, idempotency_key, producer_id)
    # The look-up also finds a key of a single event, which may be another append's: k/0 of k.
    if stored is None or stored.records[0].idempotency_key != f"{idempotency_key}/0":
        return None
    return receipt(stored)


def receipt(found: StoredAppend | None) -> AppendResult | None:
    """Return a stored append as its caller got it, None for none."""
    return None if found is None else AppendResult.replay(found.records, found.response)
