"""The commonest loop of an application: load, decide, append, and on a conflict load again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from seriatim.core.errors import ConditionalAppendConflict, EventSequenceInvalid
from seriatim.core.event import AppendResult, EventRecord, NewEvent, StreamRef
from seriatim.core.query import Query
from seriatim.core.request import Command, Condition, ExpectedContext, ExpectedSeq

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog

Decider = Callable[[list[EventRecord]], Iterable[NewEvent]]


def decide_and_append(  # noqa: PLR0913 - the loop and its bound
    log: BaseLog,
    context: StreamRef | Query,
    decider: Decider,
    *,
    attempts: int = 10,
    idempotency_key: str | None = None,
    command: Command | None = None,
) -> AppendResult | None:
    """Append what `decider` makes of a stream or a context; None when it makes nothing.

    The decider may run up to `attempts` times, so it must be a pure function of what it is given.
    """
    for attempt in range(attempts):
        records, condition = _load(log, context)
        events = list(decider(records))
        if not events:
            return None
        try:
            return log.append(events, condition, idempotency_key, command=command)
        except (ConditionalAppendConflict, EventSequenceInvalid):
            if attempt == attempts - 1:
                raise
            time.sleep(random.uniform(0, 0.002 * 2 ** min(attempt, 6)))  # noqa: S311 - jitter
    return None


def _load(log: BaseLog, context: StreamRef | Query) -> tuple[list[EventRecord], Condition]:
    if isinstance(context, Query):
        found = log.query(context)
        return found.records, ExpectedContext(context, found.context_version)
    records = list(log.read_stream(context))
    return records, ExpectedSeq(context, records[-1].stream_seq if records else None)
