"""How much memory the driver holds: its Python, and what lives in its JVM after a collection."""

import gc

import psutil
from pyspark.sql import SparkSession

from bench.harness import Contestant, Sample

MIB = 1 << 20


class DriverMemory:
    """Looks at the driver of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._python = psutil.Process()

    def after(self, contestant: Contestant, held: list[float]) -> Contestant:
        """Return the contestant, noting after each of its runs what the driver holds."""

        def run(seconds: float) -> Sample:
            sample = contestant(seconds)
            held.append(self.settled_mib())
            return sample

        return run

    def settled_mib(self) -> float:
        """Return what is held when all that can be collected is gone."""
        gc.collect()
        jvm = self._spark.sparkContext._jvm  # noqa: SLF001 - the only way into the JVM
        assert jvm is not None
        for _ in range(2):  # what a first collection only finalizes, a second one frees
            jvm.java.lang.System.gc()
        runtime = jvm.java.lang.Runtime.getRuntime()
        heap: int = runtime.totalMemory() - runtime.freeMemory()
        return (heap + self._python.memory_info().rss) / MIB
