"""A real standalone cluster: jobs run on both executors, and outlive one of them."""

from pathlib import Path

import pytest

from tests.fixtures.spark_cluster import WORKERS, SparkCluster
from tests.pipeline.jobs.spread import ROWS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]  # one of them


def test_both_executors_take_their_share(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    """J2: a Python data source and a function on its batches run in both workers' executors."""
    job = spark_cluster.start("spread", marks=str(tmp_path), partitions=4, seconds=1.0)
    executors = job.wait_for(
        lambda: len(found := spark_cluster.executors()) == WORKERS and found, "two executors"
    )
    answer = job.answer()

    assert answer["count"] == 4 * ROWS
    assert answer["sum"] == sum(range(4 * ROWS))
    assert answer["readers"] == answer["mappers"] == sorted(executors.values())


def test_a_job_outlives_a_worker(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    """J2: one worker killed while its executor reads changes nothing in the answer."""
    job = spark_cluster.start("spread", marks=str(tmp_path), partitions=6, seconds=2.0)
    executors = job.wait_for(
        lambda: len(found := spark_cluster.executors()) == WORKERS and found, "two executors"
    )
    killed, left = executors[0], executors[1]
    (mark, *_) = job.wait_for(lambda: list(tmp_path.glob(f"*-{killed}")), "task on worker 0")
    spark_cluster.kill_worker(0)
    spark_cluster.wait_workers(1)
    answer = job.answer()

    assert answer["count"] == 6 * ROWS
    assert answer["sum"] == sum(range(6 * ROWS))
    assert left in answer["readers"]
    partition = mark.name.partition("-")[0]
    assert (tmp_path / f"{partition}-{left}").exists()  # what died was read again, elsewhere

    spark_cluster.start_worker(0)
    assert spark_cluster.workers_alive() == WORKERS
