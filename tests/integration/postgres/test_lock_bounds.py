"""B14: the server ends statements that hold the log lock for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import seriatim
from seriatim import ExpectedSeq, Log, NewEvent, Settings, StreamKind, TimedOut

ELSEWHERE = ExpectedSeq(("untouched", "1"), None)
QUICK = Settings(lock_wait_s=0.4, lock_hold_s=0.4)
SLOW = """
create function slow() returns trigger language plpgsql as
$$ begin perform pg_sleep(600); return null; end $$;
create trigger slow after insert on seriatim.{table} for each statement execute function slow();
"""


@pytest.fixture
def slow_log(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Log]:
    """A log in a database whose inserts do not finish until the end of the test."""
    with seriatim.open(postgres_url, settings=QUICK) as log:
        log.append([NewEvent("first", {})])
        with psycopg.connect(postgres_url, autocommit=True) as owner:
            owner.execute(SLOW.format(table=request.param).encode())
            yield log
            owner.execute("drop function slow() cascade")
        head = log.head()
        assert log.append([NewEvent("last", {})]).first_position == head + 1


def append_batch(log: Log) -> object:
    """Append many events."""
    return log.append([NewEvent("a", {"n": n}) for n in range(100)])


def append_awaited(log: Log) -> object:
    """Append from an event loop."""
    return asyncio.run(log.aio.append([NewEvent("a", {})]))


def append_one(log: Log) -> object:
    """Append one event."""
    return log.append([NewEvent("a", {})])


def append_validated(log: Log) -> object:
    """Append one event on the validated path."""
    return log.append([NewEvent("a", {})], ELSEWHERE)


@pytest.mark.parametrize("slow_log", ["events"], indirect=True)
@pytest.mark.parametrize("act", [append_one, append_batch, append_validated, append_awaited])
def test_a_slow_append_times_out(slow_log: Log, act: Callable[[Log], Any]) -> None:
    """B14, B10: a slow append times out with cause and remedy, and is not stored."""
    with pytest.raises(TimedOut, match="raise lock_hold_s") as caught:
        act(slow_log)

    assert caught.value.details["ambiguous"] is False
    assert slow_log.head() == 1


@pytest.mark.parametrize("slow_log", ["declarations"], indirect=True)
def test_a_slow_declaration_times_out(slow_log: Log) -> None:
    """B14: a slow declaration times out and releases the lock."""
    with pytest.raises(TimedOut, match="raise lock_hold_s"):
        slow_log.declare(StreamKind(name="slow"))
    assert slow_log.append([NewEvent("a", {}, event_id="e")]).first_position == 2
    assert slow_log.append([NewEvent("a", {}, event_id="e")]).replayed
