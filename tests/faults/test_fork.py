"""A fork in mid-load: child and parent each go on with a committer and connections of their own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import seriatim
from tests.faults.support import Worker, check_whole

FORKS = 8


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_fork_in_mid_load(request: pytest.FixtureRequest, tmp_path: Path, backend: str) -> None:
    """B13: forks while threads append: nobody hangs, and every append of both sides is there."""
    url = f"sqlite:///{tmp_path}/log.db"
    if backend == "postgres":
        url = request.getfixturevalue("postgres_url")

    with Worker("fork", url=url, forks=FORKS) as worker:
        [found] = worker.wait_end()

    assert found["exits"] == [0] * FORKS
    assert found["went_on"]
    assert check_whole(url) == found["parent"] + 10 * FORKS
    with seriatim.open(url) as log:
        streams = Counter({stream.stream_id: stream.last_seq for stream in log.streams("child")})
        parents = sum(stream.last_seq for stream in log.streams("p"))
    assert streams == {str(number): 10 for number in range(FORKS)}
    assert parents == found["parent"]
