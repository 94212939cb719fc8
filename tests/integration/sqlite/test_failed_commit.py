"""A COMMIT that SQLite refuses is an error for the caller, and nothing is stored."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim import BackendFailure, ExpectedSeq, Log, NewEvent, StreamKind

STREAM = ("order", "1")
PADDING = 400_000  # bytes of journal: other files that this process writes are smaller


@contextmanager
def full_disk(path: str) -> Iterator[None]:
    """Limit the file size of this process, so that the kernel refuses writes to the journal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = Path(f"{path}-wal").stat().st_size
    assert size > PADDING
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def log(path: str) -> Iterator[Log]:
    """A log with one stream and a journal that is not empty."""
    with seriatim.open(f"sqlite:///{path}") as opened:
        opened.append([NewEvent("placed", {"pad": "x" * PADDING}, stream=STREAM)])
        yield opened


WAYS: dict[str, Callable[[Log], Any]] = {
    "one statement": lambda log: log.append([NewEvent("paid", {"n": 1})]),
    "with a condition": lambda log: log.append(
        [NewEvent("paid", stream=STREAM)], condition=ExpectedSeq(STREAM, 1)
    ),
    "with tags": lambda log: log.append([NewEvent("paid", tags=("a", "b"))]),
    "many events": lambda log: log.append([NewEvent("paid", {"n": n}) for n in range(100)]),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_failed_commit_of_an_append_is_reported(log: Log, path: str, way: str) -> None:
    """L2: a rolled-back append is reported as not stored, and the log keeps working."""
    with full_disk(path), pytest.raises(BackendFailure) as failure:
        WAYS[way](log)

    assert (failure.value.ambiguous, failure.value.retryable) == (False, True)
    assert [record.event_type for record in log.read()] == ["placed"]
    assert WAYS[way](log).first_position == 2


def test_a_failed_commit_of_a_declaration_is_reported(log: Log, path: str) -> None:
    """L2: a declaration whose commit fails is reported and not stored."""
    kind = StreamKind(name="case", first_seq=0)
    with full_disk(path), pytest.raises(BackendFailure):
        log.declare(kind)
    log.append([NewEvent("opened", stream=("case", "1"))])

    assert [record.stream_seq for record in log.read(stream=("case", "1"))] == [1]
