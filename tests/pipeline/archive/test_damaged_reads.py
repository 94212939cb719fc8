"""Reads of a replaced or lost segment fail instead of returning other events (J1)."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import seriatim
from seriatim import BackendFailure, Projection, frame_projection
from seriatim.pipeline.archive.archiver import archive
from seriatim.pipeline.archive.catalog import list_segments, read_segment
from seriatim.pipeline.project import key_partitions
from seriatim.pipeline.project.fold_outcome import SPARK_OUTCOME_SCHEMA
from seriatim.pipeline.project.job import SparkProjection
from seriatim.pipeline.project.key_partitions import PartitionFoldTask
from seriatim.pipeline.project.projector import Projector
from seriatim.pipeline.source.dataframe import events
from seriatim.pipeline.spark_errors import SPARK_ERRORS
from seriatim.spark import register
from tests.pipeline.archive.test_damage import file_of, lose_a_segment, seal_of, swap_two, truncate
from tests.pipeline.project.support import declare_seats, fill, seats

CARELESS = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")


@frame_projection("per_type", key={"type": str}, columns={"events": int}, merge={"events": "sum"})
def per_type(given: DataFrame) -> DataFrame:
    """Count events by type."""
    return given.groupBy(f.col("event_type").alias("type")).agg(f.count("*").alias("events"))


@pytest.fixture(scope="module")
def original(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A log and its archive of three segments."""
    folder = tmp_path_factory.mktemp("original")
    url = f"sqlite:///{folder}/log.db"
    with closing(seriatim.open(url)) as log:
        fill(log, 30)
    archive(spark, url, str(folder / "archive"), segment_events=10)
    return url, folder / "archive"


@pytest.fixture
def copied(original: tuple[str, Path], tmp_path: Path) -> tuple[str, Path]:
    """A copy of the archive that a test may damage."""
    url, at = original
    copy = tmp_path / "archive"
    shutil.copytree(at, copy)
    return url, copy


@pytest.fixture
def user_session(spark: SparkSession) -> SparkSession:
    """A user's session in which Spark ignores damaged and missing files."""
    own = spark.newSession()
    register(own)
    for name in CARELESS:
        own.conf.set(name, "true")
    return own


def replace_rows(at: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write other rows to the second segment's file, as valid Parquet."""
    path = file_of(at, 1)
    pq.write_table(change(pq.read_table(path)), path, compression="zstd")


def reseal_size(at: Path) -> None:
    """Change the size in the second seal to that of its file."""
    seal, file = seal_of(at, 1), file_of(at, 1)
    manifest = json.loads(seal.read_bytes())
    seal.write_text(json.dumps(manifest | {"bytes": file.stat().st_size}))


def keep_six(at: Path) -> None:
    """Remove four of ten events."""
    replace_rows(at, lambda rows: rows.slice(0, 6))


def keep_six_of_equal_size(at: Path) -> None:
    """Remove four of ten events, with the right size in the seal."""
    keep_six(at)
    reseal_size(at)


def repeat_a_row(at: Path) -> None:
    """Repeat one event and remove another, so that the count is right."""
    replace_rows(at, lambda rows: rows.take([0, 1, 2, 2, 4, 5, 6, 7, 8, 9]))
    reseal_size(at)


def repeat_all(at: Path) -> None:
    """Repeat every event."""
    replace_rows(at, lambda rows: pa.concat_tables([rows, rows]))
    reseal_size(at)


def swap_rows(at: Path) -> None:
    """Store the first segment's events in the second's file, with the right size in the seal."""
    swap_two(at)
    reseal_size(at)


def lose_a_column(at: Path) -> None:
    """Remove the column of the tenant, for which Spark would return null."""
    replace_rows(at, lambda rows: rows.drop_columns(["tenant_id"]))
    reseal_size(at)


def tear_in_place(at: Path) -> None:
    """Overwrite the file's second half with zeros."""
    path = file_of(at, 1)
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2].ljust(len(raw), b"\0"))


DAMAGES = [
    keep_six,
    keep_six_of_equal_size,
    repeat_a_row,
    repeat_all,
    lose_a_column,
    truncate,
    tear_in_place,
    swap_two,
    swap_rows,
    lose_a_segment,
]


def read_archive(name: str, spark: SparkSession, url: str, at: Path) -> Any:
    """Read the archive in one of the ways of jobs and users."""
    options = {"url": url, "archive": str(at)}
    if name == "events":
        return events(spark, url, archive=str(at)).count()
    if name == "format":
        return spark.read.format("seriatim").options(**options).load().count()
    if name == "columns":
        reader = spark.read.format("seriatim").options(**options, columns="event_type")
        return reader.load().collect()
    return [list(read_segment(str(at), segment)) for segment in list_segments(str(at))]


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_read_refuses_a_damaged_segment(
    user_session: SparkSession, copied: tuple[str, Path], damage: Callable[[Path], None]
) -> None:
    """J1: every read of a segment with other rows than were sealed fails."""
    url, at = copied
    assert read_archive("events", user_session, url, at) == 30
    damage(at)

    for way in ("events", "format", "columns", "reader"):
        with pytest.raises((BackendFailure, PySparkException), match="segment"):
            read_archive(way, user_session, url, at)


@pytest.mark.parametrize(
    "damage", [keep_six, keep_six_of_equal_size, repeat_a_row, lose_a_column, lose_a_segment]
)
def test_a_dataframe_checks_segments_when_used(
    user_session: SparkSession, copied: tuple[str, Path], damage: Callable[[Path], None]
) -> None:
    """J1: a DataFrame created before the damage fails when it is used."""
    url, at = copied
    frame = events(user_session, url, archive=str(at), tenant="default")
    assert frame.count() == 30
    damage(at)

    with pytest.raises(SPARK_ERRORS, match="segment"):
        frame.count()
    with pytest.raises(SPARK_ERRORS, match="segment"):
        frame.select("payload").where("position > 15").first()


@pytest.mark.parametrize("damage", [keep_six, repeat_a_row, truncate])
@pytest.mark.parametrize("declared", [seats, per_type], ids=["fold", "frame"])
def test_a_rebuild_from_a_damaged_archive_fails(
    user_session: SparkSession,
    copied: tuple[str, Path],
    tmp_path: Path,
    declared: Projection,
    damage: Callable[[Path], None],
) -> None:
    """I4, J1: a rebuild from a damaged archive fails, and the old tables stay."""
    url, at = copied
    target = f"sqlite:///{tmp_path}/model.db"
    with Projector(user_session, declared, url, target=target) as job:
        job.run()
    damage(at)
    with Projector(user_session, declared, url, target=target, archive=str(at)) as job:
        for accept in (False, True):
            with pytest.raises(BackendFailure, match="segment"):
                job.rebuild(accept=accept)
        assert job.model.progress(declared.name, shadow=True) is None
    with Projector(user_session, declared, url, target=target) as job:
        assert job.verify().equal


def lose_event_11(patch: pytest.MonkeyPatch) -> None:
    """Make every read of a job omit an event."""
    whole = SparkProjection.events

    def lossy(job: SparkProjection, after: int, until: int) -> DataFrame:
        return whole(job, after, until).where("position <> 11")

    patch.setattr(SparkProjection, "events", lossy)


def lose_a_share(patch: pytest.MonkeyPatch) -> None:
    """Fold all key partitions but the last."""

    def lossy(spark: SparkSession, folder: PartitionFoldTask) -> DataFrame:
        return spark.range(folder.partitions - 1).mapInArrow(folder, SPARK_OUTCOME_SCHEMA)

    patch.setattr(key_partitions, "fold_partitions", lossy)


by_function = declare_seats(key=lambda event: event.payload["show"])
mostly_keyless = declare_seats(key=lambda event: "s-1" if event.payload["show"] == "s-1" else None)
keyless = declare_seats(key="payload.nowhere")
keyless_column = declare_seats(key="causation_id")


@pytest.mark.parametrize(
    ("declared", "lose", "archived"),
    [
        (seats, lose_event_11, True),
        (per_type, lose_event_11, True),
        (by_function, lose_event_11, True),
        (by_function, lose_event_11, False),
        (mostly_keyless, lose_event_11, False),
        (keyless, lose_event_11, False),
        (seats, lose_a_share, False),
    ],
)
def test_a_rebuild_counts_its_events_against_the_log(
    spark: SparkSession,
    copied: tuple[str, Path],
    tmp_path: Path,
    declared: Projection,
    lose: Callable[[pytest.MonkeyPatch], None],
    *,
    archived: bool,
) -> None:
    """I4: a rebuild that reads fewer events than the log has is not switched to.

    Archive and log are intact here; the reader itself omits events.
    """
    url, at = copied
    target = f"sqlite:///{tmp_path}/model.db"
    kept = str(at) if archived else None
    with Projector(spark, declared, url, target=target, archive=kept) as job:
        with pytest.MonkeyPatch.context() as patch:
            lose(patch)
            with pytest.raises(BackendFailure, match=r"read \d+ events .* the log holds") as failed:
                job.rebuild()
        assert job.status() is None
        assert failed.value.details["read"] < failed.value.details["expected"]
        assert not failed.value.retryable
        assert job.rebuild().switched


@pytest.mark.parametrize("declared", [by_function, per_type])
def test_a_rebuild_counts_the_events_of_its_catch_up(
    spark: SparkSession, copied: tuple[str, Path], tmp_path: Path, declared: Projection
) -> None:
    """I4: events after the position of the old tables are counted before the switch, too."""
    url, at = copied
    target = f"sqlite:///{tmp_path}/model.db"
    with Projector(spark, declared, url, target=target, archive=str(at), batch_events=5) as job:
        job.run(until=lambda: (job.status() or job.begin()).position >= 10)
        assert job.begin().position == 10
        with pytest.MonkeyPatch.context() as patch:
            lose_event_11(patch)
            with pytest.raises(BackendFailure, match="after position 10 and up to 30, the log"):
                job.rebuild()
        assert job.begin().position == 10
        assert job.rebuild().switched


@pytest.mark.parametrize("declared", [mostly_keyless, keyless, keyless_column])
@pytest.mark.parametrize("archived", [True, False])
def test_events_without_a_key_count_as_read(
    spark: SparkSession,
    copied: tuple[str, Path],
    tmp_path: Path,
    declared: Projection,
    *,
    archived: bool,
) -> None:
    """I4: a rebuild over events without a key is switched to."""
    url, at = copied
    target = f"sqlite:///{tmp_path}/model.db"
    kept = str(at) if archived else None
    with Projector(spark, declared, url, target=target, archive=kept) as job:
        assert job.rebuild().switched


def test_a_changed_file_is_checked_again(spark: SparkSession, copied: tuple[str, Path]) -> None:
    """J1: a segment that was intact in one read and is damaged in the next is refused."""
    url, at = copied
    assert events(spark, url, archive=str(at)).count() == 30
    sound = file_of(at, 1).read_bytes()
    tear_in_place(at)
    with pytest.raises(BackendFailure, match="segment"):
        events(spark, url, archive=str(at))
    file_of(at, 1).write_bytes(sound)
    assert events(spark, url, archive=str(at)).count() == 30
