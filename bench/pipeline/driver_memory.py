"""The memory of the Spark driver: its Python process and the live objects of its JVM."""

import gc

import psutil
from pyspark.sql import SparkSession

from bench.measurement import Sample, Subject

MIB = 1 << 20


class DriverMemory:
    """Measures the driver of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._python = psutil.Process()

    def after(self, subject: Subject, memory_mib: list[float]) -> Subject:
        """Return a subject that runs `subject`, then adds the memory in use to `memory_mib`."""

        def run(seconds: float) -> Sample:
            sample = subject(seconds)
            memory_mib.append(self.settled_mib())
            return sample

        return run

    def settled_mib(self) -> float:
        """Return the memory in use after garbage collections, in MiB."""
        gc.collect()
        jvm = self._spark.sparkContext._jvm  # noqa: SLF001 - the only way into the JVM
        assert jvm is not None
        for _ in range(2):  # the second one frees what the first one finalized
            jvm.java.lang.System.gc()
        runtime = jvm.java.lang.Runtime.getRuntime()
        heap: int = runtime.totalMemory() - runtime.freeMemory()
        return (heap + self._python.memory_info().rss) / MIB
