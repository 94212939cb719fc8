"""The history of the log in one process: bounded samples, trend and stall."""

from __future__ import annotations

from pathlib import Path

from seriatim.console.history import (
    SAMPLES_MAX,
    AppendTimer,
    ConsumerSample,
    History,
    LogSample,
    Sampler,
    count_waiting,
    describe_trend,
    is_stalled,
)
from seriatim.core.event import NewEvent
from seriatim.store.port import Cursor
from tests.console.console_service import ConsoleService, run_console
from tests.service.conftest import sqlite_in


def make_samples(*values: tuple[int, int]) -> list[ConsumerSample]:
    """Return samples of (position, lag), five seconds apart."""
    return [ConsumerSample(5.0 * n, position, lag) for n, (position, lag) in enumerate(values)]


def test_a_cursor_that_stands_still_while_events_wait_has_stalled() -> None:
    """N1: a consumer has stalled after a minute without progress while events are pending."""
    still = [(7, 3)] * 13
    assert is_stalled(make_samples(*still))
    assert not is_stalled(make_samples(*still[1:])), "a minute has not passed"
    assert not is_stalled(make_samples((7, 0), *still[1:])), "the events have just arrived"
    assert not is_stalled(make_samples((6, 3), *still[1:])), "the cursor has just moved"
    assert not is_stalled(make_samples(*[(7, 0)] * 20)), "nothing waits"
    assert not is_stalled([])


def test_the_trend_of_a_lag_is_a_word() -> None:
    """N1: the trend of the last five minutes is growing, falling or steady."""
    assert describe_trend(make_samples((1, 10), (1, 90))) == "growing"
    assert describe_trend(make_samples((1, 90), (80, 10))) == "falling"
    assert describe_trend(make_samples((1, 100), (2, 101))) == "steady"
    assert describe_trend(make_samples((1, 100))) == ""
    assert describe_trend([]) == ""


def test_samples_consumers_and_tenants_are_bounded() -> None:
    """N1: the history has an hour of samples of a bounded number of consumers and tenants."""
    history = History()
    for number in range(2 * SAMPLES_MAX):
        history.log.append(LogSample(5.0 * number, number))
        history.add(("a", "handler", "h"), ConsumerSample(5.0 * number, 1, 1))
    for number in range(1000):
        history.watch(f"tenant-{number}")
        history.add(("a", "handler", f"h{number}"), ConsumerSample(0.0, 1, 1))

    assert len(history.log) == len(history.consumer("a", "handler", "h")) == SAMPLES_MAX
    assert len(history.tenants) == 16
    assert history.tenants[-1] == "tenant-999"
    assert history.consumer("a", "handler", "h999") == []
    history.expire(10 * SAMPLES_MAX + 3000.0)
    assert history.consumer("a", "handler", "h0") == []
    assert history.consumer("a", "handler", "h") != []


def test_a_consumer_belongs_to_its_tenant() -> None:
    """K2: consumers of two tenants with the same name have separate histories."""
    history = History()
    history.add(("acme", "projection", "seats"), ConsumerSample(0.0, 1, 1))

    assert history.consumer("glob", "projection", "seats") == []


def test_rates_are_those_between_two_samples() -> None:
    """N1: a rate is the growth of the head by time, and never negative after a restore."""
    history = History()
    history.log += [LogSample(0.0, 10), LogSample(5.0, 60), LogSample(10.0, 0)]

    assert history.append_rates() == [(5.0, 10.0), (10.0, 0.0)]


def test_durations_of_appends_become_percentiles() -> None:
    """N1: a sample has the median and 99th percentile, and an exact count beyond the limit."""
    timer = AppendTimer()
    for number in range(101):
        timer.record(float(number))
    assert timer.take() == (101, 50.0, 99.0)
    for _ in range(5000):
        timer.record(1.0)
    assert timer.take() == (5000, 1.0, 1.0)
    assert timer.take() == (0, 0.0, 0.0)


def test_events_that_need_an_operator_do_not_wait() -> None:
    """G5: dead letters and unknown effects do not count as lag of their handler."""
    counts = [
        {"handler": "h", "status": status, "count": 2, "first_position": position}
        for status, position in (("failed", 9), ("blocked", 4), ("dead", 1), ("unknown", 2))
    ]
    assert count_waiting(counts) == {"h": (4, 4)}


def test_a_sampler_records_the_log_and_its_consumers(tmp_path: Path) -> None:
    """N1: samples come from the routes of the API; appends of this process are timed."""
    with run_console(sqlite_in(tmp_path)) as service:
        log = service.service.view("default")
        log.append([NewEvent("noted", {})])
        put_cursor(service, "mirror", 0)
        history = History()
        sampler = Sampler(service._config.loaded_app, history)

        async def take_two() -> None:
            sampler.start()
            await sampler.take()
            log.append([NewEvent("noted", {})])
            await sampler.take()
            await sampler.stop()

        service.run(take_two())
    assert history.log[-1].head == 2
    assert sum(sample.appends for sample in history.log) == 1
    [*_, last] = history.consumer("default", "subscription", "mirror")
    assert (last.position, last.lag) == (0, 2)


def put_cursor(service: ConsoleService, name: str, position: int) -> None:
    """Store the cursor of a subscription."""
    log = service.service.view("default")
    identity = log.identity()
    cursor = Cursor(
        tenant_id="default",
        purpose="subscription",
        name=name,
        position=position,
        log_id=identity.log_id,
        epoch=identity.epoch,
        last_event_id="",
        query="",
    )
    log.store.put_cursor(cursor, lease=None, reset=False)
