"""Verification reports every kind of damage to an archive or its log."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from seriatim import BackendFailure
from seriatim.pipeline.archive.archiver import archive
from seriatim.pipeline.archive.catalog import list_segments, open_archive
from seriatim.pipeline.archive.restore import restore
from seriatim.pipeline.archive.verification import verify_archive
from tests.pipeline.archive.support import fill


@pytest.fixture(scope="module")
def original(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A log and its archive of three segments."""
    folder = tmp_path_factory.mktemp("original")
    url = f"sqlite:///{folder}/log.db"
    fill(url, 30)
    archive(spark, url, str(folder / "archive"), segment_events=10)
    return url, folder / "archive"


@pytest.fixture
def copied(original: tuple[str, Path], tmp_path: Path) -> tuple[str, Path]:
    """A copy of the archive that a test may damage."""
    url, at = original
    copy = tmp_path / "archive"
    shutil.copytree(at, copy)
    return url, copy


def file_of(at: Path, index: int) -> Path:
    """Return the file of a segment."""
    return at / list_segments(str(at))[index].file


def seal_of(at: Path, index: int) -> Path:
    """Return the seal of a segment."""
    return at / list_segments(str(at))[index].seal_name


def flip_a_byte(at: Path, *, where: float = 0.1) -> None:
    """Change one byte of the second segment's file."""
    path = file_of(at, 1)
    raw = bytearray(path.read_bytes())
    raw[int(len(raw) * where)] ^= 1
    path.write_bytes(raw)


def flip_a_middle_byte(at: Path) -> None:
    """Change a byte of the footer, the largest part of such a small file."""
    flip_a_byte(at, where=0.5)


def flip_a_late_byte(at: Path) -> None:
    """Change a byte near the end."""
    flip_a_byte(at, where=0.95)


def truncate(at: Path) -> None:
    """Remove the end of the second segment's file."""
    path = file_of(at, 1)
    path.write_bytes(path.read_bytes()[:-100])


def lose_a_segment(at: Path) -> None:
    """Remove the second segment's file."""
    file_of(at, 1).unlink()


def swap_two(at: Path) -> None:
    """Replace the second segment's file by the first one's."""
    file_of(at, 1).write_bytes(file_of(at, 0).read_bytes())


def lose_a_seal(at: Path) -> None:
    """Remove the second segment's seal."""
    seal_of(at, 1).unlink()


def edit_a_seal(at: Path) -> None:
    """Change a digest in a seal."""
    path = seal_of(at, 1)
    seal = json.loads(path.read_bytes())
    path.write_text(json.dumps(seal | {"digest": seal["total"]}))


def break_a_seal(at: Path) -> None:
    """Truncate the second segment's seal."""
    path = seal_of(at, 1)
    path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize(
    ("damage", "message", "where"),
    [
        (flip_a_byte, "hash differs", "segments/00000000000000000011-"),
        (flip_a_middle_byte, "hash differs", "segments/00000000000000000011-"),
        (flip_a_late_byte, "hash differs", "segments/00000000000000000011-"),
        (truncate, "bytes", "segments/00000000000000000011-"),
        (lose_a_segment, "missing", "segments/00000000000000000011-"),
        (swap_two, "were sealed", "segments/00000000000000000011-"),
        (lose_a_seal, "from position 11 is missing", "seals/00000000000000000021"),
        (edit_a_seal, "do not add up", "seals/00000000000000000011"),
        (break_a_seal, "cannot be decoded", "seals/00000000000000000011"),
    ],
)
def test_damage_is_found_and_named(
    spark: SparkSession,
    copied: tuple[str, Path],
    tmp_path: Path,
    damage: Callable[[Path], None],
    message: str,
    where: str,
) -> None:
    """J1: each kind of damage is reported with its file, and nothing is restored."""
    url, at = copied
    assert verify_archive(spark, url, str(at)).ok
    damage(at)

    for log in (url, None):
        report = verify_archive(spark, log, str(at))
        assert not report.ok
        assert report.problems[0].file.startswith(where), report.problems
        assert message in report.problems[0].message

    with pytest.raises(BackendFailure, match="the archive is damaged"):
        restore(spark, str(at), f"sqlite:///{tmp_path}/copy.db")
    assert not (tmp_path / "copy.db").exists()


def break_sqlite(path: Path) -> None:
    """Change the metadata of an event without its triggers."""
    connection = sqlite3.connect(path)
    connection.execute("drop trigger events_keep_update")
    connection.execute("""update events set metadata = '{"a":"b"}' where position = 17""")
    connection.commit()
    connection.close()


def break_postgres(url: str) -> None:
    """Change the metadata of an event without its triggers."""
    with psycopg.connect(url) as connection:
        connection.execute("alter table seriatim.events disable trigger all")
        connection.execute(
            """update seriatim.events set metadata = '{"a":"b"}' where position = 17"""
        )


def test_a_difference_between_log_and_archive_is_reported(
    spark: SparkSession, log_url: str, tmp_path: Path
) -> None:
    """J1: an event that differs from its archive is reported with position and fields."""
    at = str(tmp_path / "archive")
    fill(log_url, 30)
    archive(spark, log_url, at, segment_events=10)
    if log_url.startswith("sqlite"):
        break_sqlite(tmp_path / "log.db")
    else:
        break_postgres(log_url)

    [problem] = verify_archive(spark, log_url, at).problems

    assert problem.position == 17
    assert problem.message == "position 17 differs from the log in metadata"


def test_an_archive_of_a_later_version_is_refused(copied: tuple[str, Path]) -> None:
    """F3: an archive of a newer format version is refused."""
    _, at = copied
    path = at / "archive.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"version": 2}))

    with pytest.raises(BackendFailure, match="version 2"):
        open_archive(str(at))
