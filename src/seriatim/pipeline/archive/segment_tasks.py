"""Spark tasks for one segment: write it, and compare it with its seal and with the log."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from seriatim.core.errors import BackendFailure, NotFound, SeriatimError
from seriatim.core.event import LogIdentity
from seriatim.pipeline.archive.manifest import VERSION, Segment, make_file_name
from seriatim.pipeline.archive.segment_file import (
    HashingSink,
    SegmentWriter,
    hash_file,
    read_segment_file,
)
from seriatim.pipeline.digest import add_digests, digest_batch, format_digest
from seriatim.pipeline.object_storage import ObjectStorage
from seriatim.pipeline.scan.scanner import ALL_EVENTS, scan
from seriatim.pipeline.spark_errors import translate_spark_errors

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def run_tasks(
    spark: SparkSession, function: Callable[[_Item], _Result], items: Sequence[_Item]
) -> Iterator[_Result]:
    """Call a function for each item in a Spark task of its own.

    Items are processed in rounds of as many tasks as Spark runs in parallel.

    Args:
        spark: A session.
        function: A function that can be pickled.
        items: Its arguments.

    Yields:
        The results, in the order of the items.

    Raises:
        SeriatimError: A task raised it, or Spark failed.
    """
    context = spark.sparkContext
    width = max(1, context.defaultParallelism)
    for start in range(0, len(items), width):
        part = items[start : start + width]
        with translate_spark_errors():
            tasks = context.parallelize(part, len(part)).map(partial(_return_errors, function))
            results = tasks.collect()
        for result in results:
            if isinstance(result, SeriatimError):
                raise result
            yield result


def _return_errors(function: Callable[[_Item], _Result], item: _Item) -> _Result | SeriatimError:
    """Return an error of Seriatim as a value: Spark would turn a raised one into a long text."""
    try:
        return function(item)
    except SeriatimError as error:
        return error


class PositionRange(msgspec.Struct, frozen=True):
    """A range of positions, both ends included, that one task processes."""

    first: int
    last: int


class RangeSummary:
    """Counts and digests consecutive batches, and checks that their positions have no gap.

    Attributes:
        count: The number of events.
        last_event_id: The id of the last event.
        digest: The digest of the events.
    """

    def __init__(self, first: int) -> None:
        self._next = first
        self.count = 0
        self.last_event_id = ""
        self.digest = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next batch.

        Raises:
            BackendFailure: Its positions do not continue those of the previous batches.
        """
        positions = batch.column("position")
        end = self._next + batch.num_rows
        expected = pa.array(range(self._next, end), pa.int64())
        if not positions.equals(expected):
            wrong = pc.index(pc.not_equal(positions, expected), value=True).as_py()
            msg = f"found position {positions[wrong]}, expected {expected[wrong]}"
            raise BackendFailure(msg, retryable=False)
        self.count += batch.num_rows
        self.digest = add_digests((self.digest, digest_batch(batch)))
        self.last_event_id = batch.column("event_id")[-1].as_py()
        self._next = end


def write_segment(
    url: str, storage: ObjectStorage, identity: LogIdentity, span: PositionRange
) -> Segment:
    """Copy a range of the log to a file, read the file back, and return its seal.

    The seal is not stored, and its `total` is empty: the archiver completes it.

    Args:
        url: The URL of the log.
        storage: The storage of the archive.
        identity: The identity of the log, which the seal states.
        span: The range of positions.

    Raises:
        BackendFailure: The range is incomplete, or the file differs from what was written.
    """
    # A name of its own: Spark may run two attempts of a task at once.
    name = make_file_name(span.first, span.last, uuid.uuid4().hex[:12])
    try:
        return _write_file(url, storage, identity, span, name)
    except BaseException:
        with suppress(SeriatimError):
            storage.remove(name)
        raise


def _write_file(
    url: str, storage: ObjectStorage, identity: LogIdentity, span: PositionRange, name: str
) -> Segment:
    summary = RangeSummary(span.first)
    with storage.open_writer(name) as sink:
        hashed = HashingSink(sink)
        writer = SegmentWriter(hashed, {"log_id": identity.log_id, "version": str(VERSION)})
        for batch in scan(url, ALL_EVENTS, span.first - 1, span.last):
            summary.add(batch)
            writer.write(batch)
        writer.close()
    segment = Segment(
        log_id=identity.log_id,
        epoch=identity.epoch,
        first=span.first,
        last=span.last,
        count=summary.count,
        last_event_id=summary.last_event_id,
        digest=format_digest(summary.digest),
        total="",
        file=name,
        bytes=hashed.bytes,
        sha256=hashed.sha256,
    )
    # Read the file back before it is sealed: a seal must describe what the storage really has.
    for problem in check_file(storage, segment):
        raise BackendFailure(problem.message)
    return segment


class ArchiveProblem(msgspec.Struct, frozen=True):
    """A difference between a segment and its seal, or between a segment and the log.

    Attributes:
        message: What is wrong.
        file: The name of the object in the archive.
        position: The first position that differs, if it is known.
    """

    message: str
    file: str = ""
    position: int | None = None


def check_file(storage: ObjectStorage, segment: Segment) -> Iterator[ArchiveProblem]:
    """Read the whole file of a segment and yield its differences from the seal."""
    name = segment.file
    try:
        with storage.local_copy(name) as path:
            size, sha256 = hash_file(path)
            if size != segment.bytes:
                yield ArchiveProblem(f"{name} has {size} bytes, {segment.bytes} were sealed", name)
            elif sha256 != segment.sha256:
                yield ArchiveProblem(f"{name} is not the sealed file: its hash differs", name)
            summary = RangeSummary(segment.first)
            with pa.memory_map(str(path)) as source:
                for batch in read_segment_file(source):
                    summary.add(batch)
    except NotFound:
        yield ArchiveProblem(f"{name} is missing", name)
        return
    except BackendFailure as error:
        if error.retryable:
            raise
        yield ArchiveProblem(f"{name}: {error.message}", name)
        return
    if summary.count != segment.count:
        yield ArchiveProblem(
            f"{name} has {summary.count} events, {segment.count} were sealed", name
        )
    elif (summary.last_event_id, format_digest(summary.digest)) != (
        segment.last_event_id,
        segment.digest,
    ):
        yield ArchiveProblem(f"{name} has other events than were sealed: the digest differs", name)


def check_segment(
    storage: ObjectStorage, url: str | None, segment: Segment
) -> list[ArchiveProblem]:
    """Compare a segment with its seal and, with a URL, each event with the log's."""
    problems = list(check_file(storage, segment))
    if url is None:
        return problems
    try:
        with storage.open_reader(segment.file) as source:
            archived = read_segment_file(source)
            live = scan(url, ALL_EVENTS, segment.first - 1, segment.last)
            problem = _find_difference(archived, live, segment)
    # `check_file` has reported the missing file.
    except NotFound:
        return problems
    except BackendFailure as error:
        if error.retryable:
            raise
        problem = (
            None if problems else ArchiveProblem(f"{segment.file}: {error.message}", segment.file)
        )
    return problems if problem is None else [*problems, problem]


def _find_difference(
    archived: Iterable[pa.RecordBatch], live: Iterable[pa.RecordBatch], segment: Segment
) -> ArchiveProblem | None:
    """Return the first event in which archive and log differ, None if they are equal."""
    position = segment.first
    for left, right in _align(iter(archived), iter(live)):
        if left is None or right is None:
            where = "the log" if left is None else "the archive"
            return ArchiveProblem(f"position {position} is only in {where}", segment.file, position)
        # Whole batches are compared first, because they are equal nearly always.
        if not left.equals(right):
            for row in range(left.num_rows):
                names = [
                    name
                    for name in left.schema.names
                    if left.column(name)[row] != right.column(name)[row]
                ]
                if names:
                    msg = f"position {position + row} differs from the log in {', '.join(names)}"
                    return ArchiveProblem(msg, segment.file, position + row)
        position += left.num_rows
    return None


def _align(
    left_batches: Iterator[pa.RecordBatch], right_batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch | None, pa.RecordBatch | None]]:
    """Yield pairs of batches of equal length; None for the side that ends first."""
    left, right = next(left_batches, None), next(right_batches, None)
    while left is not None and right is not None:
        rows = min(left.num_rows, right.num_rows)
        yield left.slice(0, rows), right.slice(0, rows)
        left, right = left.slice(rows), right.slice(rows)
        left = left if left.num_rows else next(left_batches, None)
        right = right if right.num_rows else next(right_batches, None)
    if left is not None or right is not None:
        yield left, right
