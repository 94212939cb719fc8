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


def run_scenario(scenario: str, **arguments: object) -> Any:
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


def test_fork_under_load(url: str) -> None:
    """B13: forks during appends hang neither process and lose no append."""
    with Worker("fork", url=url, forks=FORKS) as worker:
        [found] = worker.wait_end()

    assert found["exits"] == [0] * FORKS
    assert found["continued"]
    assert check_log_complete(url) == found["parent"] + 10 * FORKS
    with seriatim.open(url) as log:
        streams = Counter({stream.stream_id: stream.last_seq for stream in log.streams("child")})
        parents = sum(stream.last_seq for stream in log.streams("p"))
    assert streams == {str(number): 10 for number in range(FORKS)}
    assert parents == found["parent"]


def test_subscription_created_before_a_fork(url: str) -> None:
    """E5: of two children with a subscription of their parent, one handles and the other waits."""
    first, second = run_scenario("subscription", url=url, appends=5)

    assert sorted(first + second) == [1, 2, 3, 4, 5]
    assert [] in (first, second)


def test_fork_while_a_batch_is_handled(url: str) -> None:
    """E5: a fork leaves the lease with the parent; the child gets `lease_lost`."""
    child, handled = run_scenario("mid_iteration", url=url, appends=3)

    assert child == "lease_lost"
    assert handled == [1, 2, 3]


def test_registry_created_before_a_fork(url: str, tmp_path: Path) -> None:
    """G1: parent and children have different owners, and each event is claimed once."""
    place = url if url.startswith("postgresql") else f"sqlite:///{tmp_path}/registry.db"
    owner, (first, won), (second, rest) = run_scenario("registry", url=place, events=400)

    assert len({owner, first, second}) == 3
    assert sorted(won + rest) == sorted(f"e-{number}" for number in range(0, 400, 2))


def test_concurrent_runs_of_one_subscription(tmp_path: Path) -> None:
    """E5: of two concurrent runs of a subscription one handles the events, the other waits."""
    handled: list[int] = []
    waiting = threading.Event()

    def handle(batch: Any) -> None:
        if not handled:
            waiting.wait(1.0)  # while the other run tries to claim the lease
        handled.extend(record.position for record in batch)

    with seriatim.open(f"sqlite:///{tmp_path}/log.db") as log:
        for number in range(5):
            log.append([NewEvent("placed", {"n": number})])
        made = log.subscribe("shared", lease_s=60.0, poll_s=0.05, idle_timeout=0.5)
        threads = [made.start(handle) for _ in range(2)]
        for thread in threads:
            thread.join(60)

    assert handled == [1, 2, 3, 4, 5]
