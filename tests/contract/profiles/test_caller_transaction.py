"""Appends of profiles in a transaction of the caller, on Postgres."""

from typing import Any

import psycopg

import seriatim
from tests.contract.profiles.trace_factories import envelope

FACT: dict[str, Any] = {"event_type": "noted", "payload": 1}
ROUTE: dict[str, Any] = {
    "aggregate_type": "route",
    "aggregate_id": "r-1",
    "org_id": "org-1",
    "actor_type": "system",
    "actor_id": "s-1",
    "request_id": "r-1",
}


def test_events_commit_with_the_callers_state(postgres_url: str) -> None:
    """B12: events of every profile are committed or rolled back with the caller's."""
    with seriatim.open(postgres_url) as log, psycopg.connect(postgres_url) as connection:
        log.facts.append([FACT], connection=connection)
        connection.rollback()
        assert log.head() == 0

        fact = log.facts.append_if([FACT], {}, None, connection=connection)
        event = {"event_type": "RouteCreated", "payload": {}}
        route = log.aggregates.append([event], **ROUTE, connection=connection)
        stored = log.traces.append_event(envelope(), connection=connection)
        connection.commit()

        assert fact
        assert (route.events[0].event_id, stored.log_seq, log.head()) == (2, 3, 3)


async def test_async_events_commit_with_the_callers_state(postgres_url: str) -> None:
    """B12: awaited appends of profiles are stored with the commit of an async connection."""
    connection = await psycopg.AsyncConnection.connect(postgres_url)
    with seriatim.open(postgres_url) as log:
        async with connection:
            await log.facts.aio.append([FACT], connection=connection)
            stored = await log.traces.aio.append_event(envelope(), connection=connection)
        assert (stored.log_seq, log.head()) == (2, 2)
