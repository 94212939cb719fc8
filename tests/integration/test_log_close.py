"""Tails and subscriptions end when their log is closed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import seriatim
from seriatim import BackendFailure, NewEvent
from seriatim.testing.factories import BatchCollector


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a log."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/log.db"
    return str(request.getfixturevalue("application_url"))


def test_a_run_ends_with_a_closed_log(url: str) -> None:
    """B13: the run of a subscription raises `The log is closed` when its log is closed."""
    seen, ended = BatchCollector(), []
    log = seriatim.open(url)
    log.append([NewEvent("x", {})])
    subscription = log.subscribe("s", poll_s=0.02)

    def run() -> None:
        try:
            subscription.run(seen)
        except BackendFailure as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    seen.next()
    log.close()
    thread.join(30)
    subscription.stop()

    assert [(error.message, error.retryable) for error in ended] == [
        ("The log is closed: open it again.", False)
    ]
