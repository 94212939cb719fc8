"""A fork under load: child and parent continue with their own committer and connections."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim import NewEvent
from tests.faults.support import ROOT, Worker, check_log_complete

FORKS = 8


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh log on each backend that processes share."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/log.db"


def forked(scenario: str, **arguments: Any) -> Any:
    """Run a scenario of `tests.faults.forks` in a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.forks", scenario, json.dumps(arguments)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_fork_in_mid_load(url: str) -> None:
    """B13: forks during appends hang neither process and lose no append."""
    with Worker("fork", url=url, forks=FORKS) as worker:
        [found] = worker.wait_end()

    assert found["exits"] == [0] * FORKS
    assert found["went_on"]
    assert check_log_complete(url) == found["parent"] + 10 * FORKS
    with seriatim.open(url) as log:
        streams = Counter({stream.stream_id: stream.last_seq for stream in log.streams("child")})
        parents = sum(stream.last_seq for stream in log.streams("p"))
    assert streams == {str(number): 10 for number in range(FORKS)}
    assert parents == found["parent"]


def test_subscription_made_before_a_fork(url: str) -> None:
    """E5: each acquisition has its own owner: one child handles, the other waits."""
    first, second = forked("subscription", url=url, appends=5)

    assert sorted(first + second) == [1, 2, 3, 4, 5]
    assert [] in (first, second)


def test_fork_while_a_batch_is_handled(url: str) -> None:
    """E5: the lease stays the parent's; its child handles nothing and moves no cursor."""
    child, handled = forked("mid_iteration", url=url, appends=3)

    assert child == "lease_lost"
    assert handled == [1, 2, 3]


def test_registry_made_before_a_fork(url: str, tmp_path: Path) -> None:
    """G1: each process claims with its own owner and connection."""
    place = url if url.startswith("postgresql") else f"sqlite:///{tmp_path}/registry.db"
    owner, (first, won), (second, rest) = forked("registry", url=place, events=400)

    assert len({owner, first, second}) == 3
    assert sorted(won + rest) == sorted(f"e-{number}" for number in range(0, 400, 2))


def test_threads_of_one_subscription_take_turns(tmp_path: Path) -> None:
    """E5: two runs of one subscription in one process are two owners: one runs, one waits."""
    handled: list[int] = []
    waiting = threading.Event()

    def handle(batch: Any) -> None:
        if not handled:
            waiting.wait(1.0)  # while the other run tries to have the lease, too
        handled.extend(record.position for record in batch)

    with seriatim.open(f"sqlite:///{tmp_path}/log.db") as log:
        for number in range(5):
            log.append([NewEvent("placed", {"n": number})])
        made = log.subscribe("shared", lease_s=60.0, poll_s=0.05, idle_timeout=0.5)
        threads = [made.start(handle) for _ in range(2)]
        for thread in threads:
            thread.join(60)

    assert handled == [1, 2, 3, 4, 5]
