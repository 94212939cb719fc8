"""Written files and restored logs are read again and compared."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import pytest
from pyspark.sql import SparkSession

from seriatim import BackendFailure
from seriatim.pipeline.archive.archiver import archive
from seriatim.pipeline.archive.catalog import list_segments
from seriatim.pipeline.archive.restore import restore
from seriatim.pipeline.object_storage import FolderStorage
from tests.pipeline.archive.support import fill

Damage = Callable[[bytes], bytes]


def flip(data: bytes) -> bytes:
    """Change one byte of the first events."""
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


def tear(data: bytes) -> bytes:
    """Remove the end."""
    return data[:-64]


def empty(_: bytes) -> bytes:
    """Remove everything."""
    return b""


class Unreliable(FolderStorage, frozen=True):
    """A folder on a disk that stores other bytes than were written, and reports success."""

    damage: Damage = flip

    @contextmanager
    def open_writer(self, name: str) -> Iterator[IO[bytes]]:
        """Write a file, and damage it when it is closed."""
        with super().open_writer(name) as sink:
            yield sink
        path = Path(self.path, name)
        path.write_bytes(self.damage(path.read_bytes()))


@pytest.mark.parametrize("damage", [flip, tear, empty])
def test_a_file_is_read_back_before_its_seal(
    spark: SparkSession, tmp_path: Path, damage: Damage
) -> None:
    """J1: a file with lost or changed bytes is not sealed, and the run fails."""
    url, at = f"sqlite:///{tmp_path}/log.db", f"{tmp_path}/archive"
    fill(url, 20)

    with pytest.raises(BackendFailure):
        archive(spark, url, Unreliable(at, damage), segment_events=10)

    assert list_segments(at) == []
    assert list(Path(at, "segments").iterdir()) == []
    assert archive(spark, url, at, segment_events=10).end == 20


def change_event(path: Path, position: int) -> None:
    """Change the metadata of an event without its triggers."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("drop trigger events_keep_update")
        database.execute(
            """update events set metadata = '{"a":"b"}' where position = ?""", [position]
        )


@pytest.mark.parametrize("changed", [1, 3])
def test_a_restored_log_that_differs_is_refused(
    spark: SparkSession, tmp_path: Path, changed: int
) -> None:
    """J1: a restore compares every event at its end, also those restored before."""
    path, at = tmp_path / "log.db", f"{tmp_path}/archive"
    partial = tmp_path / "partial.db"  # the state after a killed restore
    fill(f"sqlite:///{path}", 4)
    shutil.copy(path, partial)
    fill(f"sqlite:///{path}", 6)
    archive(spark, f"sqlite:///{path}", at, segment_events=5)
    change_event(partial, changed)

    with pytest.raises(BackendFailure, match="and the restored log differ") as caught:
        restore(spark, at, f"sqlite:///{partial}")
    assert caught.value.details["position"] == changed
    assert not caught.value.retryable
