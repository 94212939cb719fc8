"""A replaced or lost segment is never read as fewer or different events (J1)."""

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
from seriatim.pipeline.project.job import ProjectionJob
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
    """Make the second seal agree with the size of its file, so that only the rows can tell."""
    seal, file = seal_of(at, 1), file_of(at, 1)
    manifest = json.loads(seal.read_bytes())
    seal.write_text(json.dumps(manifest | {"bytes": file.stat().st_size}))


def keep_six(at: Path) -> None:
    """Lose four of ten events."""
    replace_rows(at, lambda rows: rows.slice(0, 6))


def keep_six_of_equal_size(at: Path) -> None:
    """Lose four of ten events in a file of the sealed size."""
    keep_six(at)
    reseal_size(at)


def repeat_a_row(at: Path) -> None:
    """Hold one event twice and another not at all: the count is the sealed one."""
    replace_rows(at, lambda rows: rows.take([0, 1, 2, 2, 4, 5, 6, 7, 8, 9]))
    reseal_size(at)


def repeat_all(at: Path) -> None:
    """Hold every event twice."""
    replace_rows(at, lambda rows: pa.concat_tables([rows, rows]))
    reseal_size(at)


def swap_rows(at: Path) -> None:
    """Hold the first segment's events under the second seal, in a file of the sealed size."""
    swap_two(at)
    reseal_size(at)


def lose_a_column(at: Path) -> None:
    """Hold every event without its tenant: Spark reads null there, and a filter nothing."""
    replace_rows(at, lambda rows: rows.drop_columns(["tenant_id"]))
    reseal_size(at)


def tear_in_place(at: Path) -> None:
    """Lose the file's second half and keep its size."""
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


def columns_read(name: str, spark: SparkSession, url: str, at: Path) -> Any:
    """Read the damaged archive in one of the ways in which a job or a user reads."""
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
    """J1: a segment with other rows than were sealed fails the read in every session."""
    url, at = copied
    assert columns_read("events", user_session, url, at) == 30
    damage(at)

    for way in ("events", "format", "columns", "reader"):
        with pytest.raises((BackendFailure, PySparkException), match="segment"):
            columns_read(way, user_session, url, at)


@pytest.mark.parametrize(
    "damage", [keep_six, keep_six_of_equal_size, repeat_a_row, lose_a_column, lose_a_segment]
)
def test_a_frame_that_was_made_before_the_damage_is_refused(
    user_session: SparkSession, copied: tuple[str, Path], damage: Callable[[Path], None]
) -> None:
    """J1: a DataFrame reads when it is used: the seals are compared then, each time."""
    url, at = copied
    made = events(user_session, url, archive=str(at), tenant="default")
    assert made.count() == 30
    damage(at)

    with pytest.raises(SPARK_ERRORS, match="segment"):
        made.count()
    with pytest.raises(SPARK_ERRORS, match="segment"):
        made.select("payload").where("position > 15").first()


@pytest.mark.parametrize("damage", [keep_six, repeat_a_row, truncate])
@pytest.mark.parametrize("made", [seats, per_type], ids=["fold", "frame"])
def test_a_rebuild_does_not_switch_to_a_damaged_archive(
    user_session: SparkSession,
    copied: tuple[str, Path],
    tmp_path: Path,
    made: Projection,
    damage: Callable[[Path], None],
) -> None:
    """I4, J1: a rebuild over a damaged archive fails, and the old tables stay."""
    url, at = copied
    target = f"sqlite:///{tmp_path}/model.db"
    with Projector(user_session, made, url, target=target) as job:
        job.run()
    damage(at)
    with Projector(user_session, made, url, target=target, archive=str(at)) as job:
        for accept in (False, True):
            with pytest.raises(BackendFailure, match="segment"):
                job.rebuild(accept=accept)
        assert job.model.progress(made.name, shadow=True) is None
    with Projector(user_session, made, url, target=target) as job:
        assert job.verify().equal


def lose_event_11(patch: pytest.MonkeyPatch) -> None:
    """Let every read of a job lose an event."""
    whole = ProjectionJob.events

    def lossy(job: ProjectionJob, after: int, until: int) -> DataFrame:
        return whole(job, after, until).where("position <> 11")

    patch.setattr(ProjectionJob, "events", lossy)


def lose_a_share(patch: pytest.MonkeyPatch) -> None:
    """Let no task fold the last share of the keys."""

    def lossy(spark: SparkSession, folder: PartitionFoldTask) -> DataFrame:
        return spark.range(folder.partitions - 1).mapInArrow(folder, SPARK_OUTCOME_SCHEMA)

    patch.setattr(key_partitions, "fold_partitions", lossy)


by_function = declare_seats(key=lambda event: event.payload["show"])
mostly_keyless = declare_seats(key=lambda event: "s-1" if event.payload["show"] == "s-1" else None)
keyless = declare_seats(key="payload.nowhere")
keyless_column = declare_seats(key="causation_id")


@pytest.mark.parametrize(
    ("made", "lose", "archived"),
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
    made: Projection,
    lose: Callable[[pytest.MonkeyPatch], None],
    *,
    archived: bool,
) -> None:
    """I4: a rebuild whose tasks read fewer events than the log holds is not switched to.

    Archive and log are sound here; the reader itself loses events.
    """
    url, at = copied
    target = f"sqlite:///{tmp_path}/model.db"
    kept = str(at) if archived else None
    with Projector(spark, made, url, target=target, archive=kept) as job:
        with pytest.MonkeyPatch.context() as patch:
            lose(patch)
            with pytest.raises(BackendFailure, match=r"read \d+ events .* the log holds") as failed:
                job.rebuild()
        assert job.status() is None
        assert failed.value.details["read"] < failed.value.details["expected"]
        assert not failed.value.retryable
        assert job.rebuild().switched


@pytest.mark.parametrize("made", [by_function, per_type])
def test_a_rebuild_counts_the_events_that_it_catches_up_with(
    spark: SparkSession, copied: tuple[str, Path], tmp_path: Path, made: Projection
) -> None:
    """I4: events after the old tables' position are counted before the switch as well."""
    url, at = copied
    target = f"sqlite:///{tmp_path}/model.db"
    with Projector(spark, made, url, target=target, archive=str(at), batch_events=5) as job:
        job.run(until=lambda: (job.status() or job.begin()).position >= 10)
        assert job.begin().position == 10
        with pytest.MonkeyPatch.context() as patch:
            lose_event_11(patch)
            with pytest.raises(BackendFailure, match="after position 10 and up to 30, the log"):
                job.rebuild()
        assert job.begin().position == 10
        assert job.rebuild().switched


@pytest.mark.parametrize("made", [mostly_keyless, keyless, keyless_column])
@pytest.mark.parametrize("archived", [True, False])
def test_events_without_a_key_count_as_read(
    spark: SparkSession,
    copied: tuple[str, Path],
    tmp_path: Path,
    made: Projection,
    *,
    archived: bool,
) -> None:
    """I4: a rebuild over events that have no key, some or all of them, is switched to."""
    url, at = copied
    target = f"sqlite:///{tmp_path}/model.db"
    kept = str(at) if archived else None
    with Projector(spark, made, url, target=target, archive=kept) as job:
        assert job.rebuild().switched


def test_a_file_is_compared_again_when_it_changes(
    spark: SparkSession, copied: tuple[str, Path]
) -> None:
    """J1: a segment that was sound at one read and is damaged at the next is refused then."""
    url, at = copied
    assert events(spark, url, archive=str(at)).count() == 30
    sound = file_of(at, 1).read_bytes()
    tear_in_place(at)
    with pytest.raises(BackendFailure, match="segment"):
        events(spark, url, archive=str(at))
    file_of(at, 1).write_bytes(sound)
    assert events(spark, url, archive=str(at)).count() == 30
