"""Attempts of subscriptions under kill -9, takeovers and operators: nothing is silently dropped."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial

from seriatim import Conflict, Log
from seriatim.store.port import SubscriptionStatus
from seriatim.testing.factories import events
from tests.faults.support import Worker, wait_until


def read_status(log: Log) -> SubscriptionStatus:
    """Return the status of the subscription of the workers."""
    return log.subscriptions.get("s")


def is_parked(log: Log) -> bool:
    """Return whether the subscription of the workers waits for an operator."""
    return read_status(log).status == "parked"


def test_a_batch_that_kills_its_consumer_is_bounded(url: str, log: Log) -> None:
    """E5: attempts whose process was killed count; after the last one the batch is given up."""
    for _ in range(2):
        log.append(events(1))
    for number in (1, 2):
        with Worker("consume", url=url, attempts=2, hang=[1]) as victim:
            victim.wait_lines(2)
            assert read_status(log).attempts == number
            victim.kill9()

    with Worker("consume", url=url, attempts=2, hang=[1]) as last:
        wait_until(lambda: is_parked(log), "the subscription is parked")
        assert last.lines == ["ready"]
        status = read_status(log)
        assert (status.position, status.attempts) == (0, 2)
        assert "attempt 2 had no result" in (status.last_error or "")
        log.subscriptions.skip("s", 1, reason="it kills its consumer")
        assert last.wait_lines(2)[1] == 2
        wait_until(lambda: read_status(log).position == 2, "the next batch is handled")


def test_a_kill_between_attempts_keeps_the_count(url: str, log: Log) -> None:
    """E5: a consumer that is killed between two attempts does not restart the count."""
    log.append(events(1))
    for number in (1, 2):
        with Worker("consume", url=url, attempts=3, base_s=60, refuse=[1]) as victim:
            wait_until(partial(_has_failed, log, number), f"failure {number}")
            victim.kill9()
            assert victim.lines == ["ready", 1]

    with Worker("consume", url=url, attempts=3, base_s=60, refuse=[1]) as last:
        wait_until(lambda: is_parked(log), "the subscription is parked")
        assert last.lines == ["ready", 1]
        assert read_status(log).attempts == 3


def _has_failed(log: Log, times: int) -> bool:
    return [status.failures for status in log.subscriptions()] == [times]


def test_nothing_is_silently_dropped(url: str, log: Log) -> None:
    """E5: with two owners, kills, skips and resets each batch is handled or listed as skipped."""
    count = 30
    refused = set(range(4, 10 * count, 5))
    appended: list[int] = []  # between them are the operators' actions
    handled: set[int] = set()
    with ExitStack() as stack:

        def start() -> Worker:
            return stack.enter_context(
                Worker(
                    "consume",
                    url=url,
                    attempts=2,
                    base_s=0.01,
                    refuse=sorted(refused),
                    on_poison="skip",
                )
            )

        workers = [start(), start()]
        started = list(workers)
        for worker in workers:
            worker.wait_ready()
        for number in range(count):
            appended.append(log.append(events(1)).first_position)
            if number % 10 == 7:  # of the two, perhaps the owner
                workers.pop(0).kill9()
                workers.append(start())
                started.append(workers[-1])
            if number % 10 == 3:
                with suppress(Conflict):
                    attempt = read_status(log).attempt
                    if attempt is not None:
                        log.subscriptions.skip("s", attempt.first_position, reason="in the way")
            if number == count // 2:
                # What the reset passes must have been handled before.
                wait_until(lambda: read_status(log).position >= 2, "the first two batches")
                log.subscriptions.reset("s", 2, reason="once more")
        wait_until(lambda: read_status(log).position >= appended[-1], "the end of the log")
        for worker in started:
            handled |= {line for line in worker.lines if isinstance(line, int)}

    skipped = {batch.first_position for batch in log.subscriptions.skipped("s")}
    assert (handled - refused) | skipped >= set(appended)
    assert skipped >= refused & set(appended)
    assert read_status(log).status == "ready"
