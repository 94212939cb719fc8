"""Explain an append: run its checks on the current log, without storing it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import UNSET

from seriatim.core.decide import AcceptedAppend, DecisionTrace, ReplayedAppend, StaleRules
from seriatim.core.errors import BackendFailure, SeriatimError
from seriatim.core.explanation import Explanation, explain_decision, explain_refusal
from seriatim.core.limits import MIB
from seriatim.core.request import AppendRequest, ExpectedContext, ExpectedSeq, PreparedEvent
from seriatim.log.appender import RULE_RELOADS_MAX, Draft, rules_changing_error
from seriatim.store.common import take_page
from seriatim.store.port import ReadSpec

if TYPE_CHECKING:
    from seriatim.core.event import EventRecord
    from seriatim.log.base import BaseLog
    from seriatim.store.port import Store

EXPLAINED_EVENTS_MAX = 10
EXPLAINED_BYTES_MAX = MIB  # of their payloads; one event may exceed it


def explain_draft(log: BaseLog, draft: Draft) -> Explanation:
    """Explain an append by the functions that would append it.

    Raises:
        BackendFailure: The store failed.
    """
    for _ in range(RULE_RELOADS_MAX):
        try:
            request = log.appender.prepare_request(draft)
        except SeriatimError as error:
            if error.retryable or isinstance(error, BackendFailure):
                raise  # a failure of the store, not a property of the append
            return explain_refusal(error)
        try:
            return _explain_request(log.store, request)
        except StaleRules:
            log.appender.reload_rules()
    raise rules_changing_error()


def _explain_request(store: Store, request: AppendRequest) -> Explanation:
    trace = store.explain(request)
    if isinstance(trace, Explanation):
        return trace
    events = take_page(
        _find_deciding_events(store, request, trace), EXPLAINED_EVENTS_MAX, EXPLAINED_BYTES_MAX
    )
    return explain_decision(trace, events)


def _find_deciding_events(
    store: Store, request: AppendRequest, trace: DecisionTrace
) -> Iterable[EventRecord]:
    """Return the stored events that made an append a replay or refused it."""
    result, tenant_id = trace.result, request.tenant_id
    step, number = trace.steps[-1]
    if isinstance(result, AcceptedAppend):
        return ()
    if isinstance(result, ReplayedAppend):
        return result.records
    if step == "command" and request.command is not None:
        command = request.command.command
        earlier = store.append_by_command(tenant_id, command.actor, command.endpoint, command.key)
        return () if earlier is None else earlier.records
    if step == "conditions" and number is not None:
        return _find_conflicting(store, request, number, trace.head)
    index = result.details.get("index")
    if not isinstance(index, int):
        return ()
    event = request.events[index]
    if step == "idempotency":
        return _find_known(store, event)
    last = None if event.stream is None else store.last_of_stream(tenant_id, event.stream)
    return () if last is None else (last,)


def _find_conflicting(
    store: Store, request: AppendRequest, number: int, head: int
) -> list[EventRecord]:
    """Return the first events after those that a condition expected to be the last."""
    condition, tenant_id = request.conditions[number], request.tenant_id
    limit, max_bytes = EXPLAINED_EVENTS_MAX, EXPLAINED_BYTES_MAX
    if isinstance(condition, ExpectedSeq):
        spec = ReadSpec(
            tenant_id=tenant_id,
            limit=limit,
            until=head,
            stream=condition.stream,
            after_seq=condition.seq,
            max_bytes=max_bytes,
        )
        return store.read(spec)
    after = _get_expected_position(condition)
    if after >= head:
        return []
    return store.select(tenant_id, condition.query, after, head, limit, max_bytes=max_bytes)


def _get_expected_position(condition: ExpectedContext) -> int:
    expected = condition.version if condition.after is UNSET else condition.after
    return expected if isinstance(expected, int) else 0


def _find_known(store: Store, event: PreparedEvent) -> Iterable[EventRecord]:
    """Yield the stored events with the key or the id of an event."""
    by_key = None
    if event.idempotency_index is not None and event.idempotency_key is not None:
        earlier = store.append_by_key(event.tenant_id, event.producer_id, event.idempotency_key)
        for record in () if earlier is None else earlier.records:
            if record.idempotency_key == event.idempotency_key:
                by_key = record
                yield record
    by_id = store.event(event.tenant_id, event.event_id) if event.has_caller_id else None
    if by_id is not None and (by_key is None or by_key.position != by_id.position):
        yield by_id
