"""The log is archived in sealed segments and restored, in one run or several."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import seriatim
from seriatim import InvalidArgument, LogIdentityChanged, NotFound
from seriatim.log.verification import verify
from seriatim.pipeline.archive.archiver import archive
from seriatim.pipeline.archive.catalog import list_segments, open_archive, read_segment
from seriatim.pipeline.archive.restore import restore
from seriatim.pipeline.archive.segment_file import read_segment_file
from seriatim.pipeline.archive.verification import verify_archive
from seriatim.pipeline.columns import EVENT_SCHEMA
from seriatim.pipeline.object_storage import open_storage
from tests.pipeline.archive.support import fill, fill_every_shape, head, records

Urls = Callable[[], str]


def ranges(at: str) -> list[tuple[int, int]]:
    """Return the ranges of the sealed segments."""
    return [(segment.first, segment.last) for segment in list_segments(at)]


def test_a_log_is_archived_verified_and_restored(
    spark: SparkSession, log_url: str, at: str, another_url: Urls
) -> None:
    """J1: restored records have the same position, time, ids, keys, tags and declarations."""
    last = fill_every_shape(log_url)

    done = archive(spark, log_url, at, segment_events=5, seal_tail=True)
    checked = verify_archive(spark, log_url, at)
    copy = another_url()
    restored = restore(spark, at, copy)

    assert (done.end, done.events, checked.end) == (last, last, last)
    assert checked.ok, checked.problems
    assert checked.digest == done.digest == restored.digest
    assert records(copy) == records(log_url)
    assert (restored.restored, restored.there) == (last, 0)
    with closing(seriatim.open(copy)) as log, closing(seriatim.open(log_url)) as original:
        found = verify(log.store, lookups=None).findings
        assert found == verify(original.store, lookups=None).findings
        assert [one.check for one in found if one.level == "error"] in ([], ["postgres streams"])
        assert log.store.rules().kinds == original.store.rules().kinds
        assert log.store.rules().indexes == original.store.rules().indexes
        assert log.store.rules().types.keys() == original.store.rules().types.keys()
        assert log.store.identity() != original.store.identity()
        again = log.append(
            [seriatim.NewEvent("seat", {"seat": "1A"}, tags=("ü", "b"))], idempotency_key="k-1"
        )
        assert again.replayed


def test_only_full_segments_are_sealed_by_default(
    spark: SparkSession, log_url: str, tmp_path: Path
) -> None:
    """J1: a run seals full segments and continues the last run; the tail is sealed on request."""
    at = str(tmp_path / "archive")
    fill(log_url, 25)

    first = archive(spark, log_url, at, segment_events=10)
    nothing = archive(spark, log_url, at, segment_events=10)
    tail = archive(spark, log_url, at, segment_events=10, seal_tail=True)
    fill(log_url, 20)
    more = archive(spark, log_url, at, segment_events=10)

    assert (first.end, nothing.end, tail.end, more.end) == (20, 20, 25, 40)
    assert nothing.sealed == []
    assert ranges(at) == [(1, 10), (11, 20), (21, 25), (26, 30), (31, 40)]
    assert verify_archive(spark, log_url, at).ok
    assert archive(spark, log_url, at, segment_events=4, until=43).end == 40


def test_an_empty_log_and_a_single_event(spark: SparkSession, log_url: str, tmp_path: Path) -> None:
    """J1: an empty log has an archive without segments, one event one segment."""
    at = str(tmp_path / "archive")
    seriatim.open(log_url).close()

    empty = archive(spark, log_url, at, seal_tail=True)
    assert (empty.end, list_segments(at), verify_archive(spark, log_url, at).ok) == (0, [], True)
    assert restore(spark, at, f"sqlite:///{tmp_path}/none.db").head == 0

    fill(log_url, 1)
    one = archive(spark, log_url, at, seal_tail=True)
    assert (one.end, ranges(at)) == (1, [(1, 1)])
    assert verify_archive(spark, log_url, at).ok


def test_segments_are_read_by_range_and_columns(
    spark: SparkSession, log_url: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J1: a segment is read in part, by positions and columns."""
    fill(log_url, 40)
    archive(spark, log_url, at, segment_events=20)
    [first, second] = list_segments(at)

    whole = pa.Table.from_batches(read_segment(at, second))
    part = pa.Table.from_batches(read_segment(at, first, ["event_type", "position"], 3, 7))
    unnamed = pa.Table.from_batches(read_segment(at, first, ["event_id"], 3, 7))

    assert whole.schema.equals(EVENT_SCHEMA)
    assert whole.column("position").to_pylist() == list(range(21, 41))
    assert part.column_names == ["event_type", "position"]
    assert part.column("position").to_pylist() == [4, 5, 6, 7]
    assert unnamed.num_rows == 4
    assert [record.event_id for record in records(log_url)[3:7]] == unnamed.column(0).to_pylist()
    assert list(read_segment(at, first, after=20)) == []
    with open_storage(at).open_reader(second.file) as source:
        assert pq.ParquetFile(source).schema_arrow.metadata[b"log_id"].decode() == first.log_id


def any_value(field: pa.Field) -> pa.Scalar:
    """Return a value that a column may have."""
    if field.nullable:
        return pa.scalar(None, field.type)
    if pa.types.is_nested(field.type):
        return pa.scalar([], field.type)
    return pa.scalar("x" if pa.types.is_string(field.type) else 1, field.type)


def test_row_groups_outside_of_a_range_are_not_read(tmp_path: Path) -> None:
    """J1: row groups outside the range of a read are skipped by their statistics."""
    path = tmp_path / "segment.parquet"
    columns = [pa.repeat(any_value(field), 30) for field in EVENT_SCHEMA]
    columns[0] = pa.array(range(1, 31), EVENT_SCHEMA.field("position").type)
    pq.write_table(pa.table(columns, schema=EVENT_SCHEMA), path, row_group_size=10)
    raw = bytearray(path.read_bytes())
    group = pq.ParquetFile(path).metadata.row_group(0)
    for index in range(group.num_columns):  # makes the columns of the first row group undecodable
        chunk = group.column(index)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        raw[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(raw)

    found = pa.Table.from_batches(read_segment_file(str(path), ["position"], after=12, until=15))

    assert found.column(0).to_pylist() == [13, 14, 15]


def test_an_archive_of_another_log_is_refused(
    spark: SparkSession, log_url: str, at: str, another_url: Urls
) -> None:
    """F8: archiving into, and verifying with, an archive of another log is refused."""
    fill(log_url, 10)
    archive(spark, log_url, at, segment_events=5)
    other = another_url()
    fill(other, 20)

    with pytest.raises(LogIdentityChanged, match="another log"):
        archive(spark, other, at, segment_events=5)
    with pytest.raises(LogIdentityChanged):
        verify_archive(spark, other, at)
    assert ranges(at) == [(1, 5), (6, 10)]


def test_a_log_that_lost_events_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """F8: a log with a lower head or another history does not continue its archive."""
    path, at = tmp_path / "log.db", str(tmp_path / "archive")
    url = f"sqlite:///{path}"
    fill(url, 6)
    backup = path.read_bytes()
    fill(url, 4)
    archive(spark, url, at, segment_events=5)
    path.write_bytes(backup)  # a copied file does not raise the epoch

    with pytest.raises(LogIdentityChanged, match="ends at 10, the log at 6"):
        archive(spark, url, at, segment_events=5)
    problems = verify_archive(spark, url, at).problems
    assert problems[0].position == 7

    fill(url, 9)
    with pytest.raises(LogIdentityChanged, match="another event at position 10"):
        archive(spark, url, at, segment_events=5)
    report = verify_archive(spark, url, at)
    assert [problem.position for problem in report.problems] == [7]


def test_a_new_epoch_is_compared_with_the_archive(
    spark: SparkSession, log_url: str, tmp_path: Path
) -> None:
    """F8: after a raised epoch a run compares the archive with the log before it continues."""
    at = str(tmp_path / "archive")
    fill(log_url, 10)
    archive(spark, log_url, at, segment_events=5)
    with closing(seriatim.open(log_url)) as log:
        epoch = log.store.raise_epoch().epoch
    found = open_archive(at)
    with pytest.raises(LogIdentityChanged, match="epoch"):
        found.check_log(found.log_id, epoch, 10, found.last_event_id)

    archive(spark, log_url, at, segment_events=5)

    found = open_archive(at)
    found.check_log(found.log_id, epoch, 10, found.last_event_id)
    assert found.epoch == epoch


def test_a_restore_needs_an_empty_or_partly_restored_log(
    spark: SparkSession, log_url: str, tmp_path: Path, another_url: Urls
) -> None:
    """J1: a restore into a log with other events is refused."""
    at = str(tmp_path / "archive")
    fill(log_url, 10)
    archive(spark, log_url, at, segment_events=5)
    other = another_url()
    fill(other, 3)

    with pytest.raises(seriatim.Conflict, match="not empty"):
        restore(spark, at, other)
    assert head(other) == 3

    again = restore(spark, at, log_url)
    assert (again.restored, again.there) == (0, 10)


def test_a_lost_tail_is_restored_from_the_archive(spark: SparkSession, tmp_path: Path) -> None:
    """F8: a log restored from an old backup gets its later events back, in a new epoch."""
    path, at = tmp_path / "log.db", str(tmp_path / "archive")
    url = f"sqlite:///{path}"
    fill(url, 6)
    backup = path.read_bytes()
    fill(url, 4)
    before = records(url)
    archive(spark, url, at, segment_events=5)
    path.write_bytes(backup)

    report = restore(spark, at, url)

    assert (report.restored, report.there, report.epoch) == (4, 6, 2)
    assert records(url) == before


def test_invalid_archive_location_is_refused(spark: SparkSession, log_url: str) -> None:
    """L1: an invalid location is an invalid argument, a missing archive is not found."""
    for bad in ("", "http://host/x", "s3://", "file://host/x"):
        with pytest.raises(InvalidArgument):
            open_storage(bad)
    with pytest.raises(NotFound, match="no archive"):
        open_archive("/nowhere/at/all")
    with pytest.raises(InvalidArgument):
        archive(spark, log_url, "/tmp/x", segment_events=0)  # noqa: S108 - never made
