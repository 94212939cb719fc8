"""Every job on a real cluster: the same digests as here, a worker killed on the way (J2)."""

from pathlib import Path

import pytest

import seriatim
from seriatim.opening import open_read_model, read_model_url
from seriatim.store.readmodel.model import ReadModel
from tests.fixtures.spark_cluster import WORKERS, SparkCluster
from tests.pipeline.project.kit import fill, plain_digest, seats

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]  # one of them
EVENTS = 5000  # more than a driver folds by itself


def digest(model: ReadModel) -> str:
    """Return the digest of the seats in a read model."""
    with model.moment() as moment:
        return moment.digest(seats).text()


def test_every_job(spark_cluster: SparkCluster, postgres_url: str, tmp_path: Path) -> None:
    """J2: read, catch-up, rebuild, archive, audit and lake run there as they run here."""
    with seriatim.open(postgres_url) as log:
        fill(log, EVENTS, shows=23)
        expected = plain_digest(log.read(), seats)
    answer = spark_cluster.run("everything", url=postgres_url, place=str(tmp_path / "archive"))

    assert (answer["read"], answer["archived"]) == (EVENTS, 2000)
    assert answer["caught_up"] == answer["rebuilt"] == answer["from_archive"] == expected
    assert answer["audit"] == answer["archive_verified"] == []
    assert len(answer["executors"]) == WORKERS


@pytest.mark.parametrize("do", ["rebuild", "run"])
def test_a_job_outlives_a_worker(
    spark_cluster: SparkCluster, postgres_url: str, tmp_path: Path, do: str
) -> None:
    """J2, I2, I3: a worker killed while its executor folds changes nothing in what comes of it."""
    with seriatim.open(postgres_url) as log:
        fill(log, EVENTS, shows=23)
        expected = plain_digest(log.read(), seats)
    job = spark_cluster.start("project", url=postgres_url, do=do, marks=str(tmp_path), seconds=4.0)
    job.wait_for(lambda: list(tmp_path.iterdir()), "a task that folds")
    spark_cluster.kill_worker(0)
    answer = job.answer()
    spark_cluster.start_worker(0)

    assert answer["position"] == EVENTS
    model = open_read_model(read_model_url(postgres_url))
    try:
        assert digest(model) == expected
    finally:
        model.close()
