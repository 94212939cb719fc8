"""The decide loop: load events, call a decider, append its events; on a conflict, load again."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from seriatim.core.backoff import Backoff
from seriatim.core.errors import (
    ConditionalAppendConflict,
    EventSequenceInvalid,
    IdempotencyConflict,
)
from seriatim.core.event import AppendResult, EventRecord, NewEvent, StreamRef
from seriatim.core.query import Query
from seriatim.core.request import Command, Condition, ExpectedContext, ExpectedSeq
from seriatim.log.arguments import invalid_argument
from seriatim.log.lookup import find_decision_receipt

if TYPE_CHECKING:
    from seriatim.log.async_log import BaseAsyncLog
    from seriatim.log.base import BaseLog

Events = Iterable[NewEvent | Mapping[str, Any]]
Decider = Callable[[list[EventRecord]], Events]
AsyncDecider = Callable[[list[EventRecord]], Events | Awaitable[Events]]

# An IdempotencyConflict is final, unless a concurrent duplicate has stored its receipt meanwhile.
_CONFLICTS = (ConditionalAppendConflict, EventSequenceInvalid, IdempotencyConflict)
# About the duration of an append at first. Entirely random, to separate writers that compete.
_BACKOFF = Backoff(first_s=0.002, cap_s=0.128, jitter=1.0)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A stream or context to decide on, and the key or command that identifies a retry."""

    context: StreamRef | Query
    attempts: int = 10
    idempotency_key: str | None = None
    producer_id: str | None = None
    command: Command | None = None

    @property
    def repeatable(self) -> bool:
        """Whether a retry can be distinguished from a new decision."""
        return self.idempotency_key is not None or self.command is not None

    def load(self, log: BaseLog) -> tuple[list[EventRecord], Condition, AppendResult | None]:
        """Return the records, the condition that they are unchanged, and an earlier receipt.

        The receipt is looked up after the records are read. If there is none, the records contain
        no events of an earlier or concurrent run of the same decision.
        """
        records, condition = _load_context(log, self.context)
        return records, condition, self.find(log)

    def find(self, log: BaseLog) -> AppendResult | None:
        """Return the receipt of an earlier run of this decision, or None."""
        if not self.repeatable:
            return None
        return find_decision_receipt(log, self.idempotency_key, self.producer_id, self.command)

    def is_over(self, attempt: int, error: Exception) -> bool:
        """Return whether the loop ends: a retry cannot succeed, or no attempts are left."""
        return isinstance(error, IdempotencyConflict) or attempt == self.attempts - 1

    def check(self, events: Events) -> list[NewEvent | Mapping[str, Any]]:
        """Return the decided events as a list.

        Raises:
            InvalidArgument: An event has another producer than the decision. Keys are stored per
                producer, so a retry would not find the append.
        """
        decided = list(events)
        if self.idempotency_key is not None:
            for event in decided:
                get = event.get if isinstance(event, Mapping) else partial(getattr, event)
                if get("producer_id", None) != self.producer_id:
                    raise invalid_argument(
                        "producer_id", "of decide must equal that of the decided events"
                    )
        return decided


def decide_and_append(log: BaseLog, decision: Decision, decider: Decider) -> AppendResult | None:
    """Load a stream or context, append the events that `decider` returns, retry on conflicts.

    Args:
        log: The log.
        decision: The stream or context, and how a retry is identified.
        decider: A pure function from records to new events; it may be called for every attempt.

    Returns:
        The receipt, or None if the decider returns no events.

    Raises:
        ConditionalAppendConflict: The context changed at every attempt.
        EventSequenceInvalid: The stream changed at every attempt.
    """
    for attempt in range(decision.attempts):
        records, condition, receipt = decision.load(log)
        if receipt is not None:
            return receipt
        events = decision.check(decider(records))
        if not events:
            return None
        try:
            key = decision.idempotency_key
            result = log.append(events, condition, key, command=decision.command)
        except _CONFLICTS as error:
            if (receipt := decision.find(log)) is not None:
                return receipt
            if decision.is_over(attempt, error):
                raise
            time.sleep(conflict_pause_s(attempt))
        else:
            # A concurrent duplicate may have appended more events than this one decided on.
            receipt = decision.find(log) if result.replayed else None
            return receipt or result
    return None


async def decide_and_append_async(
    aio: BaseAsyncLog, log: BaseLog, decision: Decision, decider: AsyncDecider
) -> AppendResult | None:
    """Do the same as `decide_and_append` on an event loop.

    The decider may be a coroutine function.
    """
    for attempt in range(decision.attempts):
        records, condition, receipt = await aio.call(decision.load, log)
        if receipt is not None:
            return receipt
        decider_result = decider(records)
        decided = await decider_result if inspect.isawaitable(decider_result) else decider_result
        events = decision.check(decided)
        if not events:
            return None
        try:
            key = decision.idempotency_key
            result = await aio.append(events, condition, key, command=decision.command)
        except _CONFLICTS as error:
            if (receipt := await aio.call(decision.find, log)) is not None:
                return receipt
            if decision.is_over(attempt, error):
                raise
            await asyncio.sleep(conflict_pause_s(attempt))
        else:
            receipt = await aio.call(decision.find, log) if result.replayed else None
            return receipt or result
    return None


def conflict_pause_s(attempt: int) -> float:
    """Return the pause after an attempt, counted from 0, that met a conflict."""
    return _BACKOFF.delay_s(attempt + 1, random.random())  # noqa: S311 - jitter


def _load_context(log: BaseLog, context: StreamRef | Query) -> tuple[list[EventRecord], Condition]:
    if isinstance(context, Query):
        result = log.query(context)
        return result.records, ExpectedContext(context, result.context_version)
    records = list(log.read_stream(context))
    return records, ExpectedSeq(context, records[-1].stream_seq if records else None)
