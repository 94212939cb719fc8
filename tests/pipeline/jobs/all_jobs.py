"""All jobs of the pipeline, one after another."""

import os
from collections.abc import Iterator
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from seriatim.pipeline.archive.archiver import archive
from seriatim.pipeline.archive.verification import verify_archive
from seriatim.pipeline.audit.report import audit
from seriatim.pipeline.project.projector import Projector
from seriatim.pipeline.source.dataframe import events
from tests.pipeline.project.support import seats, stored_digest


def locate_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the number of rows and the executor of each batch."""
    for batch in batches:
        here = psutil.Process(os.getppid()).ppid()
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "executor": [here]})


def main(spark: SparkSession, url: str, place: str) -> dict[str, Any]:
    """Run all jobs and return their results."""
    seen = (
        events(spark, url, partitions=4)
        .mapInArrow(locate_batches, "rows bigint, executor bigint")
        .collect()
    )
    result: dict[str, Any] = {
        "read": sum(row["rows"] for row in seen),
        "executors": sorted({row["executor"] for row in seen}),
    }
    with Projector(spark, seats, url, batch_events=2500) as job:
        job.run()
        result["caught_up"] = stored_digest(job)
        result["rebuilt"] = job.rebuild().digest
    report = archive(spark, url, place, segment_events=1000, until=2000)
    result["archived"] = report.events
    result["archive_verified"] = [
        problem.message for problem in verify_archive(spark, url, place).problems
    ]
    with Projector(spark, seats, url, archive=place) as job:
        result["from_archive"] = job.rebuild().digest
    found = audit(spark, url, archive=place)
    result["audit"] = [finding.message for finding in found.findings if finding.level != "ok"]
    return result
