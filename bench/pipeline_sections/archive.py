"""The archive: its scan against plain Parquet, and two kinds of projection made from it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench.harness import Figure, Stopwatch, interleave, ratio, timed
from bench.models import ORDERS
from bench.our_pipeline import Rebuilt, scan_archive
from bench.pipeline_floors import scan_parquet
from bench.pipeline_plan import PipelineStage
from bench.server import settle
from seriatim.pipeline.archive.writing import archive as copy_log
from seriatim.pipeline.shipped import activity

SCAN_GOAL = 0.8
FRAME_GOAL = 3.0
TOLD_S = 11.0  # idle connections tell the server's statistics within ten seconds what they read


def archive(stage: PipelineStage) -> list[Figure]:
    """Archive the log, then read only from there."""
    folder = stage.home / "archive"
    watch = Stopwatch()
    made = copy_log(
        stage.spark,
        stage.url,
        str(folder),
        segment_events=stage.plan.segment_events,
        seal_tail=True,
    )
    assert made.end == stage.plan.events
    stage.say(f"    archived at {made.events / watch.seconds:,.0f}/s")
    with _log_unread(stage):
        return [*_scan(stage, folder), *_projections(stage, folder)]


def _scan(stage: PipelineStage, folder: Path) -> list[Figure]:
    files = sorted(folder.rglob("*.parquet"))
    count = stage.plan.events
    ours, plain = interleave(
        {
            "archive scan": timed(lambda: scan_archive(stage.spark, stage.url, folder, count)),
            "spark.read.parquet": timed(lambda: scan_parquet(stage.spark, files, count)),
        },
        rounds=stage.plan.rounds,
        seconds=stage.plan.seconds,
        say=stage.say,
    ).values()
    return [ratio("archive scan / plain Parquet", ours, plain, against="Parquet", goal=SCAN_GOAL)]


def _projections(stage: PipelineStage, folder: Path) -> list[Figure]:
    frame, fold = interleave(
        {
            "DataFrame projection from the archive": timed(
                Rebuilt(stage.spark, activity, stage.url, folder)
            ),
            "fold from the archive": timed(Rebuilt(stage.spark, ORDERS, stage.url, folder)),
        },
        rounds=stage.plan.rounds,
        seconds=stage.plan.seconds,
        say=stage.say,
        warm_up=False,
    ).values()
    name = "DataFrame projection / fold, from the archive"
    return [ratio(name, frame, fold, against="fold", goal=FRAME_GOAL)]


@contextmanager
def _log_unread(stage: PipelineStage) -> Iterator[None]:
    """Check that the archive gave all events: few rows of the log's table are read meanwhile.

    A rebuild counts the log's events, by an index alone. That reads no row of a vacuumed table;
    whoever reads a payload reads its row.
    """
    settle(stage.url)
    time.sleep(TOLD_S)
    before = _rows_read(stage.url)
    yield
    assert _rows_read(stage.url) - before < stage.plan.events, "it was the log that was read"


def _rows_read(url: str) -> int:
    with psycopg.connect(url) as session:
        found = session.execute(
            "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables "
            "where schemaname = 'seriatim' and relname = 'events'"
        ).fetchone()
    assert found is not None
    count: int = found[0]
    return count
