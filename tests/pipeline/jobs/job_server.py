"""A driver that runs jobs on request: a line of input per job, a line of output per result.

A cluster's executors and a driver take longer to start than a job takes to run.
"""

import importlib
import json
import sys
import time

from pyspark.sql import SparkSession

from seriatim.pipeline.source.spark_session import session

START_TIMEOUT_S = 90.0
POLL_S = 0.05


def wait_for_executors(spark: SparkSession, count: int) -> None:
    """Wait until all executors are registered, so that each gets a share of the work."""
    context = spark.sparkContext._jsc.sc()
    deadline = time.monotonic() + START_TIMEOUT_S
    while context.getExecutorMemoryStatus().size() != count + 1:  # the driver is one of them
        if time.monotonic() > deadline:
            raise TimeoutError(f"there are not {count} executors")
        time.sleep(POLL_S)


def main(executors: int) -> None:
    """Run jobs until the input ends or a job fails."""
    spark = session(settings={"spark.sql.shuffle.partitions": "4"})
    for line in sys.stdin:
        name, arguments = json.loads(line)
        wait_for_executors(spark, executors)
        job = importlib.import_module(f"tests.pipeline.jobs.{name}")
        print(json.dumps(job.main(spark, **arguments)), flush=True)  # noqa: T201 - its answer
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]))
