"""The archive: a scan compared with plain Parquet, and two kinds of projections."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench.measurement import Figure, Stopwatch, interleave, ratio, timed
from bench.pipeline.baselines import scan_parquet
from bench.pipeline.plan import PipelineEnvironment
from bench.pipeline.read_models import ORDERS
from bench.pipeline.seriatim_jobs import Rebuild, scan_archive
from bench.postgres import vacuum_and_checkpoint
from seriatim.pipeline.archive.archiver import archive as copy_log
from seriatim.pipeline.builtin_projections import activity

SCAN_GOAL = 0.8
FRAME_GOAL = 3.0
STATISTICS_DELAY_S = 11.0  # idle connections report their statistics within ten seconds


def archive(environment: PipelineEnvironment) -> list[Figure]:
    """Archive the log, then measure reads from the archive."""
    folder = environment.home / "archive"
    watch = Stopwatch()
    report = copy_log(
        environment.spark,
        environment.url,
        str(folder),
        segment_events=environment.plan.segment_events,
        seal_tail=True,
    )
    assert report.end == environment.plan.events
    environment.report(f"    archived at {report.events / watch.seconds:,.0f}/s")
    with _check_log_not_read(environment):
        return [*_scan(environment, folder), *_projections(environment, folder)]


def _scan(environment: PipelineEnvironment, folder: Path) -> list[Figure]:
    files = sorted(folder.rglob("*.parquet"))
    count = environment.plan.events
    ours, plain = interleave(
        {
            "archive scan": timed(
                lambda: scan_archive(environment.spark, environment.url, folder, count)
            ),
            "spark.read.parquet": timed(lambda: scan_parquet(environment.spark, files, count)),
        },
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
    ).values()
    return [ratio("archive scan / plain Parquet", ours, plain, against="Parquet", goal=SCAN_GOAL)]


def _projections(environment: PipelineEnvironment, folder: Path) -> list[Figure]:
    frame, fold = interleave(
        {
            "DataFrame projection from the archive": timed(
                Rebuild(environment.spark, activity, environment.url, folder)
            ),
            "fold from the archive": timed(
                Rebuild(environment.spark, ORDERS, environment.url, folder)
            ),
        },
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
        warm_up=False,
    ).values()
    name = "DataFrame projection / fold, from the archive"
    return [ratio(name, frame, fold, against="fold", goal=FRAME_GOAL)]


@contextmanager
def _check_log_not_read(environment: PipelineEnvironment) -> Iterator[None]:
    """Check that the body of the `with` block reads events from the archive, not from the log.

    A rebuild counts the events of the log with an index-only scan, which reads no rows of a
    vacuumed table. Reading a payload reads its row.
    """
    vacuum_and_checkpoint(environment.url)
    time.sleep(STATISTICS_DELAY_S)
    before = _rows_read(environment.url)
    yield
    assert _rows_read(environment.url) - before < environment.plan.events, (
        "events were read from the log instead of the archive"
    )


def _rows_read(url: str) -> int:
    with psycopg.connect(url) as session:
        row = session.execute(
            "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables "
            "where schemaname = 'seriatim' and relname = 'events'"
        ).fetchone()
    assert row is not None
    count: int = row[0]
    return count
