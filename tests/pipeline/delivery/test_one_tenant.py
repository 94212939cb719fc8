"""Publishers and workers for one tenant process its events only."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import seriatim
from seriatim import NewEvent
from seriatim.pipeline.project.stream_partitions import PartitionedRange
from tests.pipeline.delivery.conftest import Workers
from tests.pipeline.delivery.effects import make_noting_handler, read_notes
from tests.pipeline.delivery.support import create_topic, read_records
from tests.pipeline.delivery.test_publish import publish

EACH = 4


@pytest.fixture
def shared_log(log_url: str) -> str:
    """A log in which two tenants have streams with the same names."""
    for number in range(EACH):
        for tenant in ("a", "b"):
            with seriatim.open(log_url, tenant_id=tenant) as log:
                event = NewEvent(
                    "order.changed", stream=("order", "1"), event_id=f"{tenant}-{number}"
                )
                log.append([event])
    return log_url


def event_ids(tenant: str) -> list[str]:
    """Return the ids of a tenant's events."""
    return [f"{tenant}-{number}" for number in range(EACH)]


@pytest.mark.parametrize("shares", [1, 3])
def test_partitioned_range_of_one_tenant(shared_log: str, shares: int) -> None:
    """K2: a partitioned range for one tenant contains its events only."""
    part = PartitionedRange(
        url=shared_log, tenant_id="a", after=0, until=2 * EACH, partition_count=shares
    )
    found = [event for nth in range(shares) for event in part.events(nth)]

    assert {event.tenant_id for event in found} == {"a"}
    assert [event.event_id for event in found] == event_ids("a")


def test_a_worker_of_one_tenant(workers: Workers, shared_log: str, tmp_path: Path) -> None:
    """K2: a worker for one tenant handles its events only."""
    counts = workers.run(make_noting_handler(tmp_path), shared_log, tenant_id="a")

    assert [note[0] for note in read_notes(tmp_path)] == event_ids("a")
    assert counts.done == EACH


def test_a_publisher_of_one_tenant(
    spark: SparkSession, shared_log: str, topic_url: str, tmp_path: Path
) -> None:
    """K2: a publisher for one tenant sends its events only, up to the head of the log."""
    target = create_topic(topic_url)
    done = publish(spark, shared_log, topic_url, tmp_path / "c", tenant_id="b")

    assert [event.event_id for event in read_records(target)] == event_ids("b")
    assert (done.sent, done.position) == (EACH, 2 * EACH)
