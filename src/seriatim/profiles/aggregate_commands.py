"""Save aggregates, and run commands on them: load, decide, save, and load again on a conflict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from seriatim.core.errors import Conflict, EventSequenceInvalid
from seriatim.core.request import Command, ExpectedSeq
from seriatim.log.arguments import check_count, invalid_argument
from seriatim.log.base import BaseLog
from seriatim.log.lookup import find_decision_receipt
from seriatim.profiles.aggregate_class import Aggregate, AggregateT, check_aggregate_class
from seriatim.profiles.aggregate_scope import AggregateScope
from seriatim.profiles.aggregate_values import (
    AGGREGATES_PROFILE,
    EVENT_NAMES,
    AggregateAppendResult,
    RequestFields,
    check_request_fields,
    to_new_events,
)
from seriatim.profiles.base import PlannedAppend

AggregateCommand = Callable[[AggregateT], object]
AsyncAggregateCommand = Callable[[AggregateT], object | Awaitable[object]]

# Another writer of the aggregate was faster: load it again.
CONFLICTS = (EventSequenceInvalid,)


def _check_and_number(log: BaseLog, aggregate: Aggregate[Any]) -> None:
    """Give the new events of an aggregate their ids, and their numbers if the caller numbers them.

    The ids stay the same when a save is repeated, so that a save with an unknown outcome is stored
    once.
    """
    if aggregate.defect is not None:
        msg = f"{aggregate!r} cannot be saved: {aggregate.defect}; load it again"
        raise Conflict(msg, details={"aggregate_id": aggregate.aggregate_id})
    kind = log.appender.rules.kind_of(aggregate.stream_type)
    last = aggregate.aggregate_seq
    first_seq = kind.first_seq if last is None else last + 1
    for index, event in enumerate(aggregate.new_events):
        event_id = event.event_id or log.appender.new_id()
        seq = first_seq + index if kind.numbered_by == "caller" else None
        aggregate.new_events[index] = replace(event, event_id=event_id, stream_seq=seq)


def _mark_saved(aggregate: Aggregate[Any], result: AggregateAppendResult) -> None:
    """Move the new events of an aggregate to its past, after they were stored."""
    saved_ids = [event.event_id for event in aggregate.new_events]
    if result.replayed and result.event_ids != saved_ids:
        aggregate.defect = "its command was executed before, with events that it does not have"
        return
    aggregate.aggregate_seq = result.events[-1].aggregate_seq
    aggregate.new_events.clear()


def plan_save(
    scope: AggregateScope,
    aggregate: Aggregate[Any],
    command: Command | None,
    timeout: float | None,
    connection: Any,
    fields: RequestFields,
) -> PlannedAppend[AggregateAppendResult] | None:
    """Return the append of the new events of an aggregate, or None if there are none.

    Raises:
        InvalidArgument: The organisation is not that of the aggregate.
        Conflict: The aggregate has a defect.
    """
    given = check_request_fields(fields)
    org_id = given.pop("org_id", None)
    if aggregate.org_id is None:
        aggregate.org_id = org_id
    elif org_id not in (None, aggregate.org_id):
        raise invalid_argument("org_id", "must be that from which the aggregate was loaded")
    new_events = aggregate.new_events
    log = scope.find_log_for_append(aggregate.org_id, new_events)
    _check_and_number(log, aggregate)
    if not new_events:
        return None
    draft = log.draft(
        AGGREGATES_PROFILE,
        to_new_events(new_events, scope.join_fields(command, **given)),
        [ExpectedSeq(aggregate.stream, aggregate.aggregate_seq)],
        command=command,
    )
    finish, names = AggregateAppendResult, EVENT_NAMES
    return PlannedAppend(log, draft, finish, names, timeout=timeout, connection=connection)


def finish_save(
    scope: AggregateScope,
    aggregate: Aggregate[Any],
    result: AggregateAppendResult,
    connection: Any,
) -> None:
    """Mark the new events of an aggregate as stored; take a snapshot if one is due."""
    before = aggregate.aggregate_seq
    _mark_saved(aggregate, result)
    # The transaction of a caller may still be rolled back.
    if connection is None and aggregate.snapshot_every is not None:
        log = scope.find_log(aggregate.stream_type, aggregate.org_id)
        scope.find_snapshots(log).update(aggregate, before)


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """A command on one aggregate, with what identifies a retry of it."""

    scope: AggregateScope
    load_aggregate: Callable[..., Any]
    aggregate_class: type[Aggregate[Any]]
    aggregate_id: str
    attempts: int
    command: Command | None
    fields: RequestFields

    def load(self) -> tuple[Any, AggregateAppendResult | None]:
        """Return the aggregate, and the receipt of an earlier run of the command.

        The receipt is looked up after the events are read. If there is none, the aggregate has no
        events of an earlier or concurrent run of the same command.
        """
        org_id = self.fields.get("org_id")
        aggregate = self.load_aggregate(self.aggregate_class, self.aggregate_id, org_id=org_id)
        return aggregate, self.find()

    def find(self) -> AggregateAppendResult | None:
        """Return the receipt of an earlier run of the command, or None."""
        if self.command is None:
            return None
        log = self.scope.find_log(self.aggregate_class.stream_type, self.fields.get("org_id"))
        receipt = find_decision_receipt(log, None, None, self.command)
        return None if receipt is None else AggregateAppendResult(receipt)

    def is_over(self, attempt: int) -> bool:
        """Return whether no attempts are left."""
        return attempt == self.attempts - 1


def make_execution(
    scope: AggregateScope,
    load_aggregate: Callable[..., Any],
    aggregate_class: type[Aggregate[Any]],
    aggregate_id: str,
    *,
    attempts: int,
    command: Command | None,
    idempotency_key: str | None,
    fields: RequestFields,
) -> Execution:
    """Return a command on an aggregate, after its arguments are checked.

    Raises:
        InvalidArgument: An argument is malformed.
    """
    check_aggregate_class(aggregate_class)
    check_count("attempts", attempts)
    if idempotency_key is not None:
        if command is not None:
            raise invalid_argument("idempotency_key", "must be left out if there is a command")
        actor = scope.find_field("actor_id", fields)
        if actor is None:
            raise invalid_argument("actor_id", "is required with idempotency_key")
        # Keys of events are not unique here (C7), so a command record makes retries safe.
        endpoint = f"{aggregate_class.stream_type}/{aggregate_id}"
        command = Command(actor=actor, endpoint=endpoint, key=idempotency_key)
    return Execution(
        scope=scope,
        load_aggregate=load_aggregate,
        aggregate_class=aggregate_class,
        aggregate_id=aggregate_id,
        attempts=attempts,
        command=command,
        fields=fields,
    )
