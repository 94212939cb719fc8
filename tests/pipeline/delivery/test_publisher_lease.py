"""A publisher that loses its lease during a step does not write a checkpoint."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from seriatim.core.event import INFRASTRUCTURE_TENANT
from seriatim.pipeline.object_storage import FolderStorage
from seriatim.pipeline.publish.checkpoint import CheckpointStore
from seriatim.pipeline.publish.publisher import Publisher
from seriatim.store.port import Lease
from tests.pipeline.delivery.support import append_events, create_topic, read_messages, wait_until


@pytest.mark.parametrize("lease_s", [0.3, 600.0])
def test_a_publisher_without_its_lease_writes_no_checkpoint(
    spark: SparkSession,
    postgres_url: str,
    topic_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lease_s: float,
) -> None:
    """H2: a publisher that lost its lease during a step sends events but writes no checkpoint.

    Another publisher takes the lease when this one reads the head. With a short lease the loss is
    known before the step is sent; with a long one it is not, as in a suspended process.
    """
    count = append_events(postgres_url, each=2)
    target = create_topic(topic_url)
    lost = threading.Event()
    with Publisher(spark, postgres_url, target, str(tmp_path / "c"), lease_s=lease_s) as publisher:
        store: Any = publisher._store
        claim, head = store.claim_lease, store.head
        leases: list[Lease] = []

        def claimed(*args: Any) -> Lease | None:
            if lost.is_set():
                return None  # another publisher has the lease
            leases.append(claim(*args))
            return leases[-1]

        def taken_over() -> int:
            if not lost.is_set():
                store.release_lease(leases[0])
                assert claim(INFRASTRUCTURE_TENANT, leases[0].name, "another", 600.0)
                if lease_s < 1:
                    wait_until(lambda: publisher._keeper is not None and publisher._keeper.lost)
                lost.set()
            return int(head())

        monkeypatch.setattr(store, "claim_lease", claimed)
        monkeypatch.setattr(store, "head", taken_over)
        done = publisher.run(until=lambda: lost.is_set() and len(read_messages(target)) >= count)

    assert len(read_messages(target)) == count
    assert CheckpointStore(FolderStorage(str(tmp_path / "c")), "").load_last() is None
    assert (done.position, done.steps) == (0, 0)
