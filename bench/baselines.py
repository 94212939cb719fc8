"""Baselines: the speed of the disk, Postgres and SQLite without the guarantees of a log."""

import os
import sqlite3
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql

from bench.callers import alone
from bench.measurement import Sample, Subject
from bench.workload import payload_text
from tests.fixtures.postgres_server import PostgresServer

PAGE_BYTES = 8192
PREALLOCATED_PAGES = 2048
PGBENCH_DATABASE = "floor"
PGBENCH_SCRIPT = "insert into bare (payload) values (:payload);\n"
COPY_CHUNK_BYTES = 1 << 18


def fdatasync_us(folder: Path, seconds: float = 1.0) -> float:
    """Return the median time of an fdatasync after overwriting a page, as a WAL does, in µs."""
    path = folder / "fdatasync-probe"
    page = bytes(PAGE_BYTES)
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.write(handle, page * PREALLOCATED_PAGES)
        os.fsync(handle)
        times: list[float] = []
        deadline = time.perf_counter() + seconds
        while (started := time.perf_counter()) < deadline:
            os.pwrite(handle, page, len(times) % PREALLOCATED_PAGES * PAGE_BYTES)
            os.fdatasync(handle)
            times.append(time.perf_counter() - started)
    finally:
        os.close(handle)
        path.unlink()
    return statistics.median(times) * 1e6


class PgbenchBaseline:
    """One-row inserts by pgbench: id and payload, prepared, durable."""

    def __init__(self, server: PostgresServer, rows: int) -> None:
        self._server = server
        self._script = server.home / "one-row-insert.sql"
        self._script.write_text(PGBENCH_SCRIPT)
        self._payload = payload_text(0).decode()
        with psycopg.connect(server.create_database(PGBENCH_DATABASE), autocommit=True) as session:
            session.execute("create table bare (id bigserial primary key, payload text)")
            session.execute(
                "insert into bare (payload) select %s from generate_series(1, %s)",
                (self._payload, rows),
            )

    def clients(self, count: int) -> Subject:
        """Return a subject of `count` connections, each inserting row after row."""

        def run(seconds: float) -> Sample:
            prefix = self._server.home / "pgbench-log"
            self._server.run_tool(
                *("pgbench", "--no-vacuum", "--protocol=prepared", f"--file={self._script}"),
                *(f"--client={count}", f"--jobs={min(count, 2)}"),
                f"--time={max(1, round(seconds))}",
                f"--define=payload={self._payload}",
                *("--log", f"--log-prefix={prefix}"),
                PGBENCH_DATABASE,
            )
            return _pgbench_sample(list(_pgbench_rows(self._server.home)))

        return run


def _pgbench_rows(folder: Path) -> Iterator[tuple[float, float]]:
    """Yield the end and the duration of each transaction in seconds."""
    for path in folder.glob("pgbench-log.*"):
        with path.open() as lines:
            for line in lines:
                _, _, latency_us, _, epoch_s, epoch_us = line.split()[:6]
                yield int(epoch_s) + int(epoch_us) / 1e6, int(latency_us) / 1e6
        path.unlink()


def _pgbench_sample(rows: list[tuple[float, float]]) -> Sample:
    """Measure from the start of the first transaction to the end of the last one."""
    started = min(ended - latency for ended, latency in rows)
    ended = max(ended for ended, _ in rows)
    return Sample(len(rows), ended - started, [latency for _, latency in rows])


class CopyBaseline:
    """COPY into a table with the columns and indexes of the log, but without its guarantees."""

    def __init__(self, url: str) -> None:
        self._url = url
        with psycopg.connect(url, autocommit=True) as session:
            session.execute("create table public.bare_events (like seriatim.events including all)")
            session.execute("insert into public.bare_events select * from seriatim.events")
            session.execute("vacuum analyze public.bare_events")

    def repeat(self, after: int, until: int) -> Sample:
        """Copy the rows of the log in a range of positions; reading them is not timed."""
        statement = sql.SQL(
            "copy (select * from seriatim.events where position > {} and position <= {} "
            "order by position) to stdout (format binary)"
        ).format(after, until)
        with psycopg.connect(self._url, autocommit=True) as session, session.cursor() as cursor:
            with cursor.copy(statement) as out:
                rows = b"".join(bytes(piece) for piece in out)
            started = time.perf_counter()
            with cursor.copy("copy public.bare_events from stdin (format binary)") as into:
                for first in range(0, len(rows), COPY_CHUNK_BYTES):
                    into.write(rows[first : first + COPY_CHUNK_BYTES])
            return Sample(until - after, time.perf_counter() - started)


class SqliteBaseline:
    """A loop of one-row inserts, each a durable transaction (WAL, synchronous=FULL)."""

    def __init__(self, path: Path, rows: int) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.execute("create table bare (id integer primary key, payload text)")
        self._payload = payload_text(0).decode()
        self._connection.execute("begin")
        self._connection.executemany(
            "insert into bare (payload) values (?)", ((self._payload,) for _ in range(rows))
        )
        self._connection.execute("commit")

    def loop(self) -> Subject:
        """Return the loop as a subject."""
        return alone(self._insert)

    def _insert(self) -> int:
        self._connection.execute("insert into bare (payload) values (?)", (self._payload,))
        return 1

    def close(self) -> None:
        """Close the database."""
        self._connection.close()
