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


def delivery_delay(log: seriatim.Log, follower: TailThread, number: int) -> float:
    """Append with another log and return the delay of the delivery."""
    started = time.monotonic()
    position = log.append([NewEvent("n", {"n": number})]).last_position
    follower.wait_for(position, within_s=15)
    return time.monotonic() - started


def test_wake_up_arrives_before_the_poll(postgres_url: str) -> None:
    """E6: an append of another process wakes a tail long before its poll interval."""
    with seriatim.open(postgres_url) as log, seriatim.open(postgres_url) as other:
        follower = TailThread(log, poll_s=8.0)
        wait_until(lambda: listeners(postgres_url), "the listener")
        time.sleep(0.2)
        delays = [delivery_delay(other, follower, number) for number in range(5)]
        other.append([NewEvent("last", {})])
        follower._tail.stop()
        seen = list(follower.seen)

    assert min(delays) < 2.0
    assert find_gaps(seen[:5]) == []


def test_tail_survives_a_killed_listener(postgres_url: str) -> None:
    """E6: while the listener's session is killed repeatedly, every event arrives in order."""
    with seriatim.open(postgres_url) as log, seriatim.open(postgres_url) as other:
        follower = TailThread(log, poll_s=0.3)
        wait_until(lambda: listeners(postgres_url), "the listener")
        for number in range(6):
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                for pid in listeners(postgres_url):
                    admin.execute("select pg_terminate_backend(%s)", (pid,))
            delivery_delay(other, follower, number)
        wait_until(lambda: listeners(postgres_url), "the next listener")

        assert find_gaps(follower.stop()) == []


def test_tail_without_listen_polls(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """E6: where LISTEN is not available, polling finds every event."""

    def refuse(*_: object) -> None:
        raise psycopg.OperationalError("no session for you")

    monkeypatch.setattr(Listener, "_listen", refuse)
    with seriatim.open(postgres_url) as log, seriatim.open(postgres_url) as other:
        follower = TailThread(log, poll_s=0.2)
        delays = [delivery_delay(other, follower, number) for number in range(4)]

        assert find_gaps(follower.stop()) == []
        assert max(delays) < 5.0


def test_tail_without_notifications_polls(
    proxy_to: Callable[[str], TcpProxy], postgres_url: str
) -> None:
    """E6: when LISTEN never reaches the server, polling finds every event."""
    proxy = proxy_to(postgres_url)
    for _ in range(20):
        proxy.drop_requests_with(b'listen "')
    with seriatim.open(proxy.url) as log, seriatim.open(postgres_url) as other:
        follower = TailThread(log, poll_s=0.2)
        for number in range(4):
            delivery_delay(other, follower, number)

        assert listeners(postgres_url) == []
        assert find_gaps(follower.stop()) == []


def test_own_appends_wake_tails_directly(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E6: an append wakes the tails of its process without a notification."""
    monkeypatch.setattr(Listener, "_run", lambda _: None)
    with seriatim.open(postgres_url) as log:
        follower = TailThread(log, poll_s=8.0)
        time.sleep(0.2)
        delay = delivery_delay(log, follower, 1)
        log.append([NewEvent("last", {})])
        follower._tail.stop()

    assert delay < 4.0
