"""A standalone cluster: every job runs as it does locally, and survives a lost worker (J2)."""

import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

import seriatim
from seriatim.factory import open_read_model, read_model_url
from seriatim.spark import java_home
from seriatim.store.readmodel.model import ReadModel
from tests.docs.pages import blocks, read, section
from tests.fixtures.processes import free_port, kill_tree
from tests.fixtures.spark_cluster import START_TIMEOUT_S, WORKERS, SparkCluster
from tests.pipeline.jobs.partition_spread import ROWS
from tests.pipeline.project.support import digest_in_python, fill, seats

pytestmark = pytest.mark.slow
EVENTS = 5000  # more than a driver folds by itself


def test_both_executors_run_tasks(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    """J2: a Python data source and a function on its batches run in both workers' executors."""
    job = spark_cluster.start("partition_spread", marks=str(tmp_path), partitions=4, seconds=1.0)
    executors = job.wait_for(
        lambda: len(found := spark_cluster.executors()) == WORKERS and found, "two executors"
    )
    result = job.result()

    assert result["count"] == 4 * ROWS
    assert result["sum"] == sum(range(4 * ROWS))
    assert result["readers"] == result["mappers"] == sorted(executors.values())


def test_a_job_survives_a_killed_worker(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    """J2: a worker killed while its executor reads does not change the result."""
    job = spark_cluster.start("partition_spread", marks=str(tmp_path), partitions=6, seconds=2.0)
    executors = job.wait_for(
        lambda: len(found := spark_cluster.executors()) == WORKERS and found, "two executors"
    )
    killed, left = executors[0], executors[1]
    (mark, *_) = job.wait_for(lambda: list(tmp_path.glob(f"*-{killed}")), "task on worker 0")
    spark_cluster.kill_worker(0)
    spark_cluster.wait_workers(1)
    result = job.result()

    assert result["count"] == 6 * ROWS
    assert result["sum"] == sum(range(6 * ROWS))
    assert left in result["readers"]
    partition = mark.name.partition("-")[0]
    assert (
        tmp_path / f"{partition}-{left}"
    ).exists()  # the partition was read again by the other executor

    spark_cluster.start_worker(0)
    assert spark_cluster.workers_alive() == WORKERS


def digest(model: ReadModel) -> str:
    """Return the digest of the seats in a read model."""
    with model.snapshot() as moment:
        return moment.compute_digest(seats).text()


def test_every_job_runs_on_a_cluster(
    spark_cluster: SparkCluster, postgres_url: str, tmp_path: Path
) -> None:
    """J2: read, run, rebuild, archive, audit and verify give the same results on a cluster."""
    with seriatim.open(postgres_url) as log:
        fill(log, EVENTS, shows=23)
        expected = digest_in_python(log.read(), seats)
    result = spark_cluster.run("all_jobs", url=postgres_url, place=str(tmp_path / "archive"))

    assert (result["read"], result["archived"]) == (EVENTS, 2000)
    assert result["caught_up"] == result["rebuilt"] == result["from_archive"] == expected
    assert result["audit"] == result["archive_verified"] == []
    assert len(result["executors"]) == WORKERS


@pytest.mark.parametrize("do", ["rebuild", "run"])
def test_a_projection_survives_a_killed_worker(
    spark_cluster: SparkCluster, postgres_url: str, tmp_path: Path, do: str
) -> None:
    """J2, I2, I3: a worker killed while its executor folds does not change the read model."""
    with seriatim.open(postgres_url) as log:
        fill(log, EVENTS, shows=23)
        expected = digest_in_python(log.read(), seats)
    job = spark_cluster.start("project", url=postgres_url, do=do, marks=str(tmp_path), seconds=4.0)
    job.wait_for(lambda: list(tmp_path.iterdir()), "a task that folds")
    spark_cluster.kill_worker(0)
    result = job.result()
    spark_cluster.start_worker(0)

    assert result["position"] == EVENTS
    model = open_read_model(read_model_url(postgres_url))
    try:
        assert digest(model) == expected
    finally:
        model.close()


def documented_commands(replaced: Mapping[str, str]) -> list[list[str]]:
    """Return the commands of the page that start a cluster, for this machine."""
    [block] = blocks(section(read("docs/howto/spark-cluster.md"), "Start a standalone cluster"))
    text = block.text
    for name, value in replaced.items():
        assert name in text
        text = text.replace(name, value)
    return [shlex.split(line) for line in text.splitlines()]


def count_workers(ui_port: int) -> int:
    """Return the number of live workers on the web page of the master."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ui_port}/json/", timeout=5) as page:
            return int(json.load(page)["aliveworkers"])
    except OSError:
        return 0


def test_documented_commands_start_a_cluster(tmp_path: Path) -> None:
    """J2: the commands of the page start a master and a worker that registers with it."""
    port, ui_port = free_port(), free_port()
    replaced = {"head": "127.0.0.1", "7077": str(port), "8080": str(ui_port), "8g": "1g"}
    environment = os.environ | {
        "JAVA_HOME": str(java_home(tmp_path / "java")),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }
    with ExitStack() as stack, (tmp_path / "out").open("wb") as out:
        for command in documented_commands(replaced):
            process = subprocess.Popen(
                command, env=environment, cwd=tmp_path, stdout=out, stderr=out
            )
            stack.callback(kill_tree, process)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not count_workers(ui_port):
            assert time.monotonic() < deadline, (tmp_path / "out").read_text()[-4000:]
            time.sleep(0.2)
