"""The asyncio interface of the profiles: the same methods, results and errors."""

import asyncio
from typing import Any

import pytest

import seriatim
from seriatim.profiles.facts import FactAppendConflict, FactAppendResult
from tests.contract.profiles.trace_factories import append_trace, envelope

SEATS: dict[str, Any] = {"filters": [{"event_types": ["seat_taken"]}]}


async def test_concurrent_awaited_appends_are_stored_once(log: seriatim.Log) -> None:
    """C4: concurrent identical appends of an event loop return one stored event."""
    answers = await asyncio.gather(*[log.traces.aio.append_event(envelope()) for _ in range(5)])

    assert answers == [log.traces.append_event(envelope())] * 5
    assert log.head() == 1


async def test_many_concurrent_awaited_appends(log: seriatim.Log) -> None:
    """B9: more concurrent appends than threads are all stored."""
    event = {"event_type": "noted", "payload": 1}
    results = await asyncio.gather(*[log.facts.aio.append([event]) for _ in range(100)])

    assert sorted(result.first_sequence_number for result in results) == list(range(1, 101))


async def test_an_awaited_conflict_is_returned(log: seriatim.Log) -> None:
    """D5: of concurrent conditional appends one succeeds, the others return the conflict."""
    event = {"event_type": "seat_taken", "payload": "12A"}
    results = await asyncio.gather(
        *[log.facts.aio.append_if([event], SEATS, None) for _ in range(4)]
    )

    assert results.count(FactAppendResult(1, 1, 1)) == 1
    assert results.count(FactAppendConflict(None, 1)) == 3


async def test_async_errors_use_the_names_of_the_profile(log: seriatim.Log) -> None:
    """L3: errors of awaited methods use the field names of the profile."""
    with pytest.raises(seriatim.InvalidArgument) as caught:
        await log.traces.aio.append_event(envelope(schema_version=0))
    assert caught.value.details["field"] == "schema_version"
    with pytest.raises(seriatim.InvalidArgument, match="since_log_seq"):
        await log.traces.aio.list_events(since_log_seq=-1)


async def test_awaited_reads(log: seriatim.Log) -> None:
    """E4: awaited reads return the same events; batches are an async iterator."""
    stored = append_trace(log, "TraceStarted", "PrecedentCited", "TraceFinished")
    traces = log.traces.aio

    assert await traces.get_trace_events("t-1") == stored
    assert await traces.is_trace_finished("t-1")
    batches = [batch async for batch in traces.iter_event_batches(batch_size=2)]
    assert batches == [stored[:2], stored[2:]]


async def test_awaited_streams(log: seriatim.Log) -> None:
    """E5: tails and subscriptions are async iterators."""
    log.facts.append([{"event_type": "noted", "payload": n} for n in range(2)])
    facts = log.facts.aio
    live = [batch async for batch in facts.tail(after=0, idle_timeout=0.05)]
    durable = [batch async for batch in facts.subscribe("notes", idle_timeout=0.05)]
    again = [batch async for batch in facts.subscribe("notes", idle_timeout=0.05)]

    assert [[record.payload for record in batch] for batch in live] == [[0, 1]]
    assert (durable, again) == (live, [])


async def test_awaited_duplicate_commands(log: seriatim.Log) -> None:
    """C5: awaited duplicates of a command get the stored response."""
    command = seriatim.Command(actor="u-1", endpoint="x", key="k", response={"ok": True})
    options: dict[str, Any] = {
        "org_id": "org-1",
        "aggregate_type": "route",
        "aggregate_id": "r-1",
        "actor_type": "user",
        "actor_id": "u-1",
        "request_id": "r-1",
        "command": command,
    }
    event = {"event_type": "RouteCreated", "payload": {}}
    results = await asyncio.gather(
        *[log.aggregates.aio.append([event], **options) for _ in range(3)]
    )

    assert sorted(result.replayed for result in results) == [False, True, True]
    assert [result.response for result in results] == [{"ok": True}] * 3
    loaded = await log.aggregates.aio.load("route", "r-1", org_id="org-1")
    assert loaded.aggregate_seq == 1


def test_async_profile_has_only_the_methods_of_the_profile(log: seriatim.Log) -> None:
    """E4: an async profile has the methods of the profile and no others."""
    assert "append_event" in dir(log.traces.aio)
    assert "aio" not in dir(log.traces.aio)
    for name in ("aio", "_log", "nonsense"):
        with pytest.raises(AttributeError):
            getattr(log.traces.aio, name)
