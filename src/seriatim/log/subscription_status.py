"""The status of durable subscriptions: owner, lag and last error."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from seriatim.core.canonical import read_json
from seriatim.core.query import Query
from seriatim.core.times import instant_us
from seriatim.store.port import ServedStore, SubscriptionState, SubscriptionStatus

PAGE = 100


def statuses(store: ServedStore, tenant_id: str) -> Iterator[SubscriptionStatus]:
    """Yield the status of every durable subscription of a tenant, by name."""
    after = ""
    while page := status_page(store, tenant_id, after, PAGE):
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].name


def status_page(
    store: ServedStore, tenant_id: str, after: str, limit: int
) -> list[SubscriptionStatus]:
    """Return one page of subscription statuses by name, after the name `after`."""
    head = store.head()
    return [_status(store, one, head) for one in store.subscriptions(tenant_id, after, limit)]


def _status(store: ServedStore, state: SubscriptionState, head: int) -> SubscriptionStatus:
    query = Query.from_mapping(read_json(state.query)) if state.query else Query()
    after = max(state.position, query.min_position or 0)
    pending = store.select(state.tenant_id, query, after, head, 1) if after < head else []
    events, seconds = 0, 0.0
    if pending:
        recorded_us = instant_us(pending[0].recorded_at) or 0
        events = head - pending[0].position + 1
        seconds = max(0.0, time.time() - recorded_us / 1_000_000)
    return SubscriptionStatus(
        **msgspec.structs.asdict(state), head=head, lag_events=events, lag_seconds=seconds
    )
