"""The loop and the reports shared by projector, publisher and worker, without Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

from seriatim.core.backoff import Backoff
from seriatim.core.errors import BackendFailure, Conflict, SeriatimError, TimedOut
from seriatim.runs.job_loop import JobLoop, ProgressReporter, RunReport


class Steps:
    """A step that returns or raises as scripted."""

    def __init__(self, *outcomes: bool | SeriatimError) -> None:
        self.outcomes = list(outcomes)
        self.loop: JobLoop | None = None

    def __call__(self) -> bool:
        """Return or raise the next outcome; a step that returns has advanced."""
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, SeriatimError):
            raise outcome
        if self.loop is not None:
            self.loop.reset_backoff()
        return outcome


def make_loop(
    reports: list[RunReport],
    *,
    live: bool = True,
    until: Callable[[], bool] = lambda: False,
    first_s: float = 0.01,
) -> JobLoop:
    """Return a loop with short delays, whose reports are collected."""
    progress = ProgressReporter("seats", reports.append)
    backoff = Backoff(first_s=first_s, cap_s=30.0)
    return JobLoop("the job", progress, backoff=backoff, live=live, until=until)


def test_steps_run_until_one_completes_the_job() -> None:
    """I1: steps are repeated until the job is complete, and the loop itself reports nothing."""
    steps, reports = Steps(False, False, True, True), list[RunReport]()
    make_loop(reports, live=False).run(steps)

    assert steps.outcomes == [True]
    assert reports == []


def test_until_is_evaluated_before_each_step() -> None:
    """I8: once `until` is true no further step runs."""
    steps = Steps(False, False, False)
    make_loop([], until=lambda: len(steps.outcomes) == 1).run(steps)

    assert len(steps.outcomes) == 1


def test_a_live_job_backs_off_after_retryable_failures(caplog: pytest.LogCaptureFixture) -> None:
    """H1: a live job repeats a step after any retryable error, with a growing delay."""
    steps = Steps(BackendFailure("away"), TimedOut("slow"), False, BackendFailure("away"), True)
    reports: list[RunReport] = []
    loop = make_loop(reports, first_s=0.05)
    steps.loop = loop
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, logger="seriatim"):
        loop.run(steps)

    assert time.monotonic() - began >= 0.05 + 0.1 + 0.05
    assert [record.message for record in caplog.records] == [
        "the job retries in 0.1 s: away",
        "the job retries in 0.1 s: slow",
        "the job retries in 0.1 s: away",
    ]
    assert [report.activity for report in reports] == [
        "retrying in 0 s (backend_failure)",
        "retrying in 0 s (timeout)",
        "retrying in 0 s (backend_failure)",
    ]


@pytest.mark.parametrize(
    ("live", "error"),
    [
        (False, BackendFailure("away")),
        (True, BackendFailure("corrupt", retryable=False)),
        (True, Conflict("paused")),
    ],
    ids=["not live", "permanent", "conflict"],
)
def test_other_failures_end_the_job(error: SeriatimError, *, live: bool) -> None:
    """I7: a job that is not live, and any error that is not retryable, ends the job at once."""
    steps = Steps(error, True)
    with pytest.raises(type(error)):
        make_loop([], live=live).run(steps)

    assert steps.outcomes == [True]


def test_a_stopped_job_ends_its_delay() -> None:
    """H1: a job stopped during a long delay ends soon."""
    reports: list[RunReport] = []
    steps = Steps(BackendFailure("away"))
    began = time.monotonic()
    make_loop(reports, first_s=600.0, until=lambda: bool(reports)).run(steps)

    assert time.monotonic() - began < 10
    assert [report.activity for report in reports] == ["retrying in 30 s (backend_failure)"]


def test_the_rate_counts_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """I7: a report has the rate since `start`, the lag and the remaining time."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    reports: list[RunReport] = []
    progress = ProgressReporter("seats", reports.append)
    progress.start(1000)
    now[0] += 2.0
    report = progress.advance("run", 1500, 2000)
    progress.report_wait("waiting for another runner")

    assert reports == [
        RunReport("seats", "run", 1500, 2000, 250.0),
        RunReport("seats", "waiting for another runner", 0, 0, 0.0, waits=True),
    ]
    assert report is reports[0]
    assert (report.lag, report.eta_s) == (500, 2.0)
    assert reports[1].eta_s is None


def test_a_report_without_a_callback() -> None:
    """I7: without a callback the report is still returned, with rate 0 before time passes."""
    assert ProgressReporter("seats", None).advance("run", 0, 5).events_per_s == 0.0
