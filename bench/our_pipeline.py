"""Our side of the pipeline's figures: each act as a user calls it, and how many events it took."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.pipeline_floors import spend
from seriatim.core.projection import Projection
from seriatim.pipeline.events import events as pipeline_events
from seriatim.pipeline.project.projector import Projector
from seriatim.pipeline.project.rebuilding import Proof

_numbers = itertools.count(1)


def events(spark: SparkSession, url: str, **options: str | int) -> DataFrame:
    """Return all columns of the log."""
    return spark.read.format("seriatim").options(url=url, **options).load()


def read_all(spark: SparkSession, url: str, count: int) -> int:
    """Read every column of so many events, and throw them away."""
    spend(events(spark, url, endingPosition=count))
    return count


def scan_archive(spark: SparkSession, url: str, archive: Path, count: int) -> int:
    """Read every column of so many archived events, and throw them away."""
    spend(pipeline_events(spark, url, until=count, archive=str(archive)))
    return count


def catch_up(spark: SparkSession, url: str, batch: int, home: Path) -> int:
    """Stream the whole log in batches of this size to nowhere; return how many events came."""
    query = (
        spark.readStream.format("seriatim")
        .options(url=url, maxEventsPerBatch=batch)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(home / f"catch-up-{next(_numbers)}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


class Rebuilt:
    """Rebuilds a projection from nothing, each time into a schema of its own."""

    def __init__(
        self, spark: SparkSession, projection: Projection, url: str, archive: Path | None = None
    ) -> None:
        self._spark, self._projection, self._url = spark, projection, url
        self._archive = None if archive is None else str(archive)
        self.schema = ""
        self.proof: Proof | None = None

    def __call__(self) -> int:
        """Rebuild, and return how many events the log had."""
        self.schema = f"rebuilt_{next(_numbers)}"
        target = f"{self._url}?schema={self.schema}"
        with Projector(
            self._spark, self._projection, self._url, target=target, archive=self._archive
        ) as job:
            self.proof = job.rebuild()
        return self.proof.position


@contextmanager
def live(spark: SparkSession, projection: Projection, url: str, schema: str) -> Iterator[None]:
    """Run a projection live in the background."""
    failed: list[BaseException] = []
    enough = threading.Event()

    def run() -> None:
        try:
            with Projector(spark, projection, url, target=f"{url}?schema={schema}") as job:
                job.run(live=True, until=enough.is_set)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    try:
        yield
    finally:
        enough.set()
        runner.join()
        if failed:  # why nothing came through, should the caller have waited in vain
            raise failed[0]
