"""The jobs of Seriatim that the pipeline suite measures; each returns its number of events."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.pipeline.baselines import consume
from seriatim.core.projection import Projection
from seriatim.pipeline.project.projector import Projector
from seriatim.pipeline.source.dataframe import events as pipeline_events
from seriatim.runs.rebuild import Proof

_numbers = itertools.count(1)


def events(spark: SparkSession, url: str, **options: str | int) -> DataFrame:
    """Return the log as a DataFrame with all columns."""
    return spark.read.format("seriatim").options(url=url, **options).load()


def read_all(spark: SparkSession, url: str, count: int) -> int:
    """Read and discard every column of `count` events."""
    consume(events(spark, url, endingPosition=count))
    return count


def scan_archive(spark: SparkSession, url: str, archive: Path, count: int) -> int:
    """Read and discard every column of `count` archived events."""
    consume(pipeline_events(spark, url, until=count, archive=str(archive)))
    return count


def catch_up(spark: SparkSession, url: str, batch: int, home: Path) -> int:
    """Stream and discard the whole log in batches; return the number of events."""
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


class Rebuild:
    """Rebuilds a projection, each time into a new schema."""

    def __init__(
        self, spark: SparkSession, projection: Projection, url: str, archive: Path | None = None
    ) -> None:
        self._spark, self._projection, self._url = spark, projection, url
        self._archive = None if archive is None else str(archive)
        self.schema = ""
        self.proof: Proof | None = None

    def __call__(self) -> int:
        """Rebuild, and return the number of events in the log."""
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
    stopped = threading.Event()

    def run() -> None:
        try:
            with Projector(spark, projection, url, target=f"{url}?schema={schema}") as job:
                job.run(live=True, until=stopped.is_set)
        except BaseException as error:  # noqa: BLE001 - set_up again below
            failed.append(error)

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    try:
        yield
    finally:
        stopped.set()
        runner.join()
        if failed:  # explains why the caller may have waited in vain
            raise failed[0]
