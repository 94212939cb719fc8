"""Workers and publishers whose log was restored or replaced stop instead of skipping events."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import seriatim
from seriatim import LogIdentityChanged, NewEvent
from seriatim.pipeline.publish.publisher import Publisher
from tests.pipeline.delivery.conftest import Workers
from tests.pipeline.delivery.effects import make_noting_handler, read_notes
from tests.pipeline.delivery.support import create_topic, read_records


def append(url: str, *names: str) -> None:
    """Append events with the given ids."""
    with seriatim.open(url) as log:
        for name in names:
            log.append([NewEvent("order.changed", stream=("order", name), event_id=name)])


def raise_epoch(path: Path) -> None:
    """Raise the epoch, as after a promotion, and append an event."""
    with seriatim.open(f"sqlite:///{path}") as log:
        log.store.raise_epoch()
    append(f"sqlite:///{path}", "new-4")


def lose_events(path: Path) -> None:
    """Replace the log by an older copy."""
    shutil.copy(path.with_suffix(".early"), path)


def replace_events(path: Path) -> None:
    """Replace the log by an older copy with other events."""
    lose_events(path)
    append(f"sqlite:///{path}", "new-2", "new-3", "new-4")


@pytest.mark.parametrize("restored", [raise_epoch, lose_events, replace_events])
def test_a_worker_stops_on_a_restored_log(
    workers: Workers, tmp_path: Path, restored: Callable[[Path], None]
) -> None:
    """F8: a worker refuses a log with another epoch, a lower head or another event."""
    path = tmp_path / "log.db"
    url = f"sqlite:///{path}"
    append(url, "old-1")
    shutil.copy(path, path.with_suffix(".early"))
    append(url, "old-2", "old-3")
    noter = make_noting_handler(tmp_path)
    assert workers.run(noter, url).done == 3
    restored(path)

    with pytest.raises(LogIdentityChanged, match="restored or replaced"):
        workers.run(noter, url)
    assert [note[0] for note in read_notes(tmp_path)] == ["old-1", "old-2", "old-3"]


def test_a_live_publisher_stops_on_a_restored_log(
    spark: SparkSession, log_url: str, topic_url: str, tmp_path: Path
) -> None:
    """F8: a restore stops a live publisher before it sends another event.

    The epoch is raised, and an event appended, while the publisher is idle.
    """
    append(log_url, "old-1", "old-2", "old-3")
    target = create_topic(topic_url)
    ended = time.monotonic() + 120

    def restore() -> bool:
        if publisher.report.position == 3 and not epochs:
            with seriatim.open(log_url) as log:
                epochs.append(log.store.raise_epoch().epoch)
            append(log_url, "new-4")
        return publisher.report.position > 3 or time.monotonic() > ended

    with Publisher(spark, log_url, target, str(tmp_path / "c")) as publisher:
        epochs: list[int] = []
        with pytest.raises(LogIdentityChanged, match="is of epoch"):
            publisher.run(live=True, until=restore)

    assert sorted(record.event_id for record in read_records(target)) == ["old-1", "old-2", "old-3"]
