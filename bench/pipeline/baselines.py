"""Baselines of the pipeline: a bare COPY, a plain Parquet scan, and Spark's rate source."""

import itertools
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import psycopg
from pyspark.sql import DataFrame, SparkSession

from bench.measurement import Stopwatch
from seriatim.store.postgres.statements import RECORD_COLUMNS

POLL_S = 0.001
TIMEOUT_S = 120.0

_checkpoints = itertools.count(1)


def copy_out(url: str) -> int:
    """Read and discard every column of every event over one connection; return their number."""
    count = 0
    with psycopg.connect(url) as session, session.cursor() as cursor:
        with cursor.copy(f"copy (select {RECORD_COLUMNS} from seriatim.events e) to stdout") as out:
            for _ in out:
                count += 1
        assert count == cursor.rowcount
    return count


def consume(frame: DataFrame) -> None:
    """Make Spark compute every column of every row, and discard the result."""
    frame.write.format("noop").mode("overwrite").save()


def scan_parquet(spark: SparkSession, files: Sequence[Path], count: int) -> int:
    """Read Parquet files with `count` events through the standard reader."""
    consume(spark.read.parquet(*map(str, files)))
    return count


class RateSourceBaseline:
    """A stream of Spark's rate source that writes a row per second and a cursor to Postgres."""

    def __init__(self, spark: SparkSession, url: str, home: Path) -> None:
        self._spark, self._url, self._home = spark, url, home
        self._sink = psycopg.connect(url)
        self._observer = psycopg.connect(url, autocommit=True)
        self._observer.execute(
            "create table public.rate_floor "
            "(value bigint primary key, row_text text not null, due_at timestamptz not null)"
        )
        self._observer.execute("create table public.rate_cursor (value bigint not null)")
        self._observer.execute("insert into public.rate_cursor values (-1)")

    def close(self) -> None:
        """Close the connections."""
        self._sink.close()
        self._observer.close()

    def latencies(self, count: int) -> list[float]:
        """Run a new stream, and return the time until each row is visible in the table.

        The source emits the row of a second at the end of that second.
        """
        self._observer.execute("truncate public.rate_floor")
        folder = self._home / f"rate-{next(_checkpoints)}"
        query = (
            self._spark.readStream.format("rate")
            .option("rowsPerSecond", 1)
            .load()
            .writeStream.foreachBatch(self._write)
            .option("checkpointLocation", str(folder))
            .start()
        )
        try:
            return self._poll_rows(count)
        finally:
            query.stop()

    def _write(self, frame: DataFrame, _: int) -> None:
        rows = [
            (row["value"], f"row {row['value']}", row["timestamp"] + timedelta(seconds=1))
            for row in frame.collect()
        ]
        with self._sink.transaction(), self._sink.cursor() as cursor:
            cursor.executemany(
                "insert into public.rate_floor values (%s, %s, %s at time zone 'utc') "
                "on conflict (value) do update set row_text = excluded.row_text",
                rows,
            )
            if rows:
                cursor.execute("update public.rate_cursor set value = %s", (rows[-1][0],))

    def _poll_rows(self, count: int) -> list[float]:
        """Poll for rows; the first one includes the start of the stream and is not counted."""
        delays: list[float] = []
        last_position, watch = -1, Stopwatch()
        while len(delays) <= count:
            assert watch.seconds < TIMEOUT_S + 2 * count, "no rows arrive from the rate source"
            rows = self._observer.execute(
                "select value, extract(epoch from due_at)::float8 from public.rate_floor "
                "where value > %s order by value",
                (last_position,),
            ).fetchall()
            now = time.time()
            delays += [now - due for _, due in rows]
            last_position = rows[-1][0] if rows else last_position
            time.sleep(POLL_S)
        return delays[1 : count + 1]
