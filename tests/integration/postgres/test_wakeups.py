"""E6: lost or forbidden wake-ups cost at most the poll interval, never an event."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

import seriatim
from seriatim import NewEvent
from seriatim.store.postgres.connection import Listener
from tests.faults.support import TailThread, find_gaps, wait_until
from tests.fixtures.proxy import TcpProxy

LISTENERS = (
    "select pid from pg_stat_activity where application_name = 'seriatim'"
    " and datname = current_database() and query ilike 'listen%'"
)


def listeners(url: str) -> list[int]:
    """Return the sessions that listen in this database."""
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(LISTENERS)]


def delay_of(log: seriatim.Log, follower: TailThread, number: int) -> float:
    """Append with another log and return how long it took to arrive."""
    started = time.monotonic()
    position = log.append([NewEvent("n", {"n": number})]).last_position
    follower.wait_for(position, within_s=15)
    return time.monotonic() - started


def test_wake_up_comes_before_the_poll(postgres_url: str) -> None:
    """E6: normally another process's append arrives long before the poll."""
    with seriatim.open(postgres_url) as log, seriatim.open(postgres_url) as other:
        follower = TailThread(log, poll_s=8.0)
        wait_until(lambda: listeners(postgres_url), "the listener")
        time.sleep(0.2)
        delays = [delay_of(other, follower, number) for number in range(5)]
        other.append([NewEvent("last", {})])
        follower._tail.stop()
        seen = list(follower.seen)

    assert min(delays) < 2.0
    assert find_gaps(seen[:5]) == []


def test_killed_listener_loses_nothing(postgres_url: str) -> None:
    """E6: with the listener's session killed again and again, every event arrives in order."""
    with seriatim.open(postgres_url) as log, seriatim.open(postgres_url) as other:
        follower = TailThread(log, poll_s=0.3)
        wait_until(lambda: listeners(postgres_url), "the listener")
        for number in range(6):
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                for pid in listeners(postgres_url):
                    admin.execute("select pg_terminate_backend(%s)", (pid,))
            delay_of(other, follower, number)
        wait_until(lambda: listeners(postgres_url), "the next listener")

        assert find_gaps(follower.stop()) == []


def test_without_listen_the_poll_finds_all(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E6: where LISTEN is not available, polling finds every event."""

    def refuse(*_: object) -> None:
        raise psycopg.OperationalError("no session for you")

    monkeypatch.setattr(Listener, "_listen", refuse)
    with seriatim.open(postgres_url) as log, seriatim.open(postgres_url) as other:
        follower = TailThread(log, poll_s=0.2)
        delays = [delay_of(other, follower, number) for number in range(4)]

        assert find_gaps(follower.stop()) == []
        assert max(delays) < 5.0


def test_lost_notifications_cost_only_the_poll(
    proxy_to: Callable[[str], TcpProxy], postgres_url: str
) -> None:
    """E6: notifications that never come (LISTEN cut on its way) cost only the poll."""
    proxy = proxy_to(postgres_url)
    for _ in range(20):
        proxy.drop_requests_with(b'listen "')
    with seriatim.open(proxy.url) as log, seriatim.open(postgres_url) as other:
        follower = TailThread(log, poll_s=0.2)
        for number in range(4):
            delay_of(other, follower, number)

        assert listeners(postgres_url) == []
        assert find_gaps(follower.stop()) == []


def test_own_appends_wake_without_the_server(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E6: an append of the same process wakes its tails directly."""
    monkeypatch.setattr(Listener, "_run", lambda _: None)
    with seriatim.open(postgres_url) as log:
        follower = TailThread(log, poll_s=8.0)
        time.sleep(0.2)
        delay = delay_of(log, follower, 1)
        log.append([NewEvent("last", {})])
        follower._tail.stop()

    assert delay < 4.0
