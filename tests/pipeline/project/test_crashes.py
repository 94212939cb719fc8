"""Exactly once under kill -9: before, inside and after the transaction of a batch (I2)."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import seriatim
from seriatim import Log
from seriatim.pipeline.project.projector import Projector
from tests.fixtures.postgres_server import PostgresServer
from tests.pipeline.crash_driver import kill_at_points
from tests.pipeline.project.support import digest_in_python, fill, seats, stored_digest

pytestmark = pytest.mark.slow

BACKENDS = ("sqlite", "postgres")
WAYS = ("run", "live", "rebuild")
Parties = dict[str, tuple[Log, Projector]]


@pytest.fixture
def crash_setup(
    spark: SparkSession, tmp_path: Path, postgres_server: PostgresServer, postgres_template: str
) -> Iterator[Parties]:
    """A log per database and kind of run, each with a projector."""
    urls = {f"sqlite {do}": f"sqlite:///{tmp_path}/{do}.db" for do in WAYS}
    for do in WAYS:
        url = postgres_server.create_database(f"killed_{do}", postgres_template)
        urls[f"postgres {do}"] = url
    with ExitStack() as stack:
        projectors = {}
        for name, url in urls.items():
            log = stack.enter_context(seriatim.open(url))
            projectors[name] = (
                log,
                stack.enter_context(Projector(spark, seats, url, batch_events=20)),
            )
        yield projectors
    for do in WAYS:
        postgres_server.drop_database(f"killed_{do}")


def test_repeatedly_killed_drivers(crash_setup: Parties) -> None:
    """I2: after kills at each point every event counts once, as in a rebuild and a plain fold."""
    running = {name: it for name, it in crash_setup.items() if not name.endswith("rebuild")}
    reached: dict[str, list[int]] = {name: [] for name in running}
    for log, _ in running.values():
        fill(log, 90)
    for number, point in enumerate(("before", "inside", "after")):
        common = {"point": point, "commits": 2 - number % 2, "batch_events": 20}
        kill_at_points(
            *(
                {"url": job.url, "do": name.partition(" ")[2], **common}
                for name, (_, job) in running.items()
            )
        )
        for name, (log, job) in running.items():
            status = job.status()
            assert status is not None
            reached[name].append(status.position)
            records = [record for record in log.read() if record.position <= status.position]
            assert stored_digest(job) == digest_in_python(records, seats), (name, point)
            fill(log, 10, start=log.head())

    # A live driver first catches up, and is killed in a batch of its stream.
    for backend in BACKENDS:
        assert reached[f"{backend} run"] == [20, 20, 60]
        assert reached[f"{backend} live"] == [110, 130, 200]
    for name, (log, job) in running.items():
        job.run(lease_s=2.0)
        assert stored_digest(job) == digest_in_python(log.read(), seats), name
        assert job.rebuild().equal, name


def test_killed_rebuilds(crash_setup: Parties) -> None:
    """I4: remains of a killed rebuild are harmless and removed by the next one."""
    rebuilding = [crash_setup[f"{backend} rebuild"] for backend in BACKENDS]
    before = []
    for log, job in rebuilding:
        fill(log, 60)
        job.run()
        before.append(stored_digest(job))
    kill_at_points(*({"url": job.url, "do": "rebuild", "point": "inside"} for _, job in rebuilding))

    assert [stored_digest(job) for _, job in rebuilding] == before
    for log, job in rebuilding:
        fill(log, 10, start=60)
        job.run()
        with (
            job.model.engine.transaction() as session
        ):  # the lease of the killed driver has not expired
            session.run(
                f"update {job.model.engine.schema_prefix}seriatim_projections set expires_us = 0"
            )
        assert job.rebuild().equal
        assert job.model.progress("seats", shadow=True) is None
        assert stored_digest(job) == digest_in_python(log.read(), seats)
