"""Runs the parts of Spark that most tests use: a stream, a fold, an archive, an audit."""

import sys
import tempfile

from pyspark.sql import DataFrame

from seriatim.pipeline.archive.archiver import archive
from seriatim.pipeline.audit.report import audit
from seriatim.pipeline.project.projector import Projector
from seriatim.pipeline.source.spark_session import session
from tests.pipeline.project.support import seats


def collect_batch(frame: DataFrame, _batch: int) -> None:
    """Collect a batch of the stream."""
    frame.collect()


def main(url: str, place: str) -> None:
    """Run all of them on a log with some events."""
    spark = session("local[2]", settings={"spark.driver.memory": "1g"})
    with Projector(spark, seats, url) as job:
        job.run()
        job.rebuild()
    archive(spark, url, place, seal_tail=True)
    audit(spark, url, archive=place)
    with tempfile.TemporaryDirectory() as checkpoint:
        stream = spark.readStream.format("seriatim").option("url", url).load()
        query = (
            stream.writeStream.foreachBatch(collect_batch)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
