"""A minimal job with a Python function on rows, which also prints the Java home."""

import json

from pyspark.sql import functions as f
from pyspark.sql import types as t

from seriatim.pipeline.source.spark_session import session


def main() -> None:
    """Square some numbers on Spark and print the sum."""
    spark = session("local[1]", settings={"spark.driver.memory": "1g"})
    square = f.udf(lambda number: number * number, t.LongType())
    total = spark.range(10).select(f.sum(square("id")).alias("total")).first()
    assert total is not None
    assert spark.sparkContext._jvm is not None
    java = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
    spark.stop()
    print(json.dumps({"total": total["total"], "java": java}))  # noqa: T201 - its answer


if __name__ == "__main__":
    main()
