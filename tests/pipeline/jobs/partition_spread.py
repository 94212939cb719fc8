"""A Python data source and a function on Arrow batches that report their processes."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

ROWS = 1000  # in each partition


class Numbers(DataSource):
    """A data source whose rows contain their partition and process."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "numbers"

    def schema(self) -> str:
        """Return the columns."""
        return "number bigint, read_by bigint"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - the port
        """Return the reader of one scan."""
        return NumbersReader(self.options)


class NumbersReader(DataSourceReader):
    """Reads the same numbers in every attempt of a partition."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return the number of partitions in the options."""
        return [InputPartition(number) for number in range(int(self._options["partitions"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Write a marker for this attempt, sleep, and yield the rows."""
        Path(self._options["marks"], f"{partition.value}-{executor_pid()}").touch()
        time.sleep(float(self._options["seconds"]))
        first = partition.value * ROWS
        yield pa.RecordBatch.from_pydict(
            {"number": range(first, first + ROWS), "read_by": [executor_pid()] * ROWS}
        )


def executor_pid() -> int:
    """Return the pid of this Python's executor, the parent of the daemon."""
    return psutil.Process(os.getppid()).ppid()


def add_executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add the executor that ran this function."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, pa.array([executor_pid()] * batch.num_rows)],
            names=[*batch.schema.names, "mapped_by"],
        )


def main(spark: SparkSession, marks: str, partitions: int, seconds: float) -> dict[str, Any]:
    """Read and map all rows; return the sum and the processes."""
    spark.dataSource.register(Numbers)
    options = {"marks": marks, "partitions": str(partitions), "seconds": str(seconds)}
    rows = (
        spark.read.format("numbers")
        .options(**options)
        .load()
        .mapInArrow(add_executor, "number bigint, read_by bigint, mapped_by bigint")
        .collect()
    )
    return {
        "count": len(rows),
        "sum": sum(row["number"] for row in rows),
        "readers": sorted({row["read_by"] for row in rows}),
        "mappers": sorted({row["mapped_by"] for row in rows}),
    }
