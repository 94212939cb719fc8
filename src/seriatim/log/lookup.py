"""Find appends by the idempotency key or the command they were stored under."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seriatim.core.decide import key_reuse_error
from seriatim.core.event import AppendResult
from seriatim.core.ids import id_problem, key_problem, text_problem
from seriatim.log.arguments import invalid_argument

if TYPE_CHECKING:
    from seriatim.core.request import Command
    from seriatim.log.base import BaseLog
    from seriatim.store.port import StoredAppend


def find_stored_by_key(
    log: BaseLog, idempotency_key: str, producer_id: str | None
) -> StoredAppend | None:
    """Return the append stored under an idempotency key, or None.

    Raises:
        InvalidArgument: The key or the producer id is malformed.
    """
    if problem := key_problem(idempotency_key):
        raise invalid_argument("idempotency_key", problem)
    if producer_id is not None and (problem := text_problem(producer_id)):
        raise invalid_argument("producer_id", problem)
    return log.store.append_by_key(log.tenant_id, producer_id, idempotency_key)


def find_stored_by_command(
    log: BaseLog, actor: str, endpoint: str, key: str
) -> StoredAppend | None:
    """Return the append stored for a command, or None.

    Raises:
        InvalidArgument: The actor, the endpoint or the key is malformed.
    """
    for name, value in (("actor", actor), ("endpoint", endpoint)):
        if problem := id_problem(value):
            raise invalid_argument(name, problem)
    if problem := key_problem(key):
        raise invalid_argument("key", problem)
    return log.store.append_by_command(log.tenant_id, actor, endpoint, key)


def find_decision_receipt(
    log: BaseLog, idempotency_key: str | None, producer_id: str | None, command: Command | None
) -> AppendResult | None:
    """Return the receipt of an earlier decision under this command or key, or None.

    Raises:
        IdempotencyKeyReuse: The command's key was used for another request.
    """
    prepared = log.appender.prepare_command(log.tenant_id, command)
    if prepared is not None:
        checked = prepared.command
        stored_append = find_stored_by_command(log, checked.actor, checked.endpoint, checked.key)
        if stored_append is not None:
            if stored_append.request_hash != prepared.request_hash:
                raise key_reuse_error(checked.key)
            return make_receipt(stored_append)
    if idempotency_key is None:
        return None
    stored_append = find_stored_by_key(log, idempotency_key, producer_id)
    # The lookup also finds the key of a single event, which may belong to another append. Events
    # of an append with the key k have the keys k/0, k/1 and so on.
    if stored_append is None or stored_append.records[0].idempotency_key != f"{idempotency_key}/0":
        return None
    return make_receipt(stored_append)


def make_receipt(stored_append: StoredAppend | None) -> AppendResult | None:
    """Return the receipt of a stored append, or None."""
    if stored_append is None:
        return None
    return AppendResult.replay(stored_append.records, stored_append.response)
