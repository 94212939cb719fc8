"""What Spark's tasks do with one segment: write it, and compare it with its seal and the log."""

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
from seriatim.pipeline.archive.files import HashingSink, SegmentWriter, hash_file, read_file
from seriatim.pipeline.archive.place import Place
from seriatim.pipeline.archive.seals import VERSION, Segment, file_name
from seriatim.pipeline.digest import added, batch_digest, digest_text
from seriatim.pipeline.failures import translated
from seriatim.pipeline.scan import EVERYTHING, scan

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


def on_spark(
    spark: SparkSession, act: Callable[[_Item], _Found], items: Sequence[_Item]
) -> Iterator[_Found]:
    """Do something with each item, a task each, as many at once as there are cores.

    Results come in the order of the items, after each round; an error of ours is raised here.
    """
    context = spark.sparkContext
    width = max(1, context.defaultParallelism)
    for start in range(0, len(items), width):
        part = items[start : start + width]
        with translated():
            done = context.parallelize(part, len(part)).map(partial(_caught, act)).collect()
        for outcome in done:
            if isinstance(outcome, SeriatimError):
                raise outcome
            yield outcome


def _caught(act: Callable[[_Item], _Found], item: _Item) -> _Found | SeriatimError:
    """Return what is ours as a value: Spark would make a page of text of it."""
    try:
        return act(item)
    except SeriatimError as error:
        return error


class Span(msgspec.Struct, frozen=True):
    """A range of positions that becomes a segment."""

    first: int
    last: int


class Contents:
    """What a row of batches holds: its events counted, checked for gaps and digested."""

    def __init__(self, first: int) -> None:
        self._next = first
        self.count = 0
        self.tip = ""
        self.digest = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next batch; its positions must follow."""
        positions = batch.column("position")
        end = self._next + batch.num_rows
        expected = pa.array(range(self._next, end), pa.int64())
        if not positions.equals(expected):
            wrong = pc.index(pc.not_equal(positions, expected), value=True).as_py()
            msg = f"position {positions[wrong]} stands where {expected[wrong]} belongs"
            raise BackendFailure(msg, retryable=False)
        self.count += batch.num_rows
        self.digest = added((self.digest, batch_digest(batch)))
        self.tip = batch.column("event_id")[-1].as_py()
        self._next = end


def write_segment(url: str, place: Place, identity: LogIdentity, span: Span) -> Segment:
    """Copy a range of the log to a file, read that back, and return what its seal would say."""
    name = file_name(span.first, span.last, uuid.uuid4().hex[:12])
    try:
        return _written(url, place, identity, span, name)
    except BaseException:
        with suppress(SeriatimError):
            place.remove(name)
        raise


def _written(url: str, place: Place, identity: LogIdentity, span: Span, name: str) -> Segment:
    contents = Contents(span.first)
    with place.writing(name) as sink:
        hashed = HashingSink(sink)
        writer = SegmentWriter(hashed, {"log_id": identity.log_id, "version": str(VERSION)})
        for batch in scan(url, EVERYTHING, span.first - 1, span.last):
            contents.add(batch)
            writer.write(batch)
        writer.close()
    segment = Segment(
        log_id=identity.log_id,
        epoch=identity.epoch,
        first=span.first,
        last=span.last,
        count=contents.count,
        tip=contents.tip,
        digest=digest_text(contents.digest),
        total="",
        file=name,
        bytes=hashed.bytes,
        sha256=hashed.sha256,
    )
    for problem in check_file(place, segment):
        raise BackendFailure(problem.message)
    return segment


class Problem(msgspec.Struct, frozen=True):
    """Something in an archive that is not as it was sealed, or not as the log is."""

    message: str
    file: str = ""
    position: int | None = None


def check_file(place: Place, segment: Segment) -> Iterator[Problem]:
    """Read a segment's file again and yield how it differs from its seal."""
    name = segment.file
    try:
        with place.copied(name) as path:
            size, sha256 = hash_file(path)
            if size != segment.bytes:
                yield Problem(f"{name} has {size} bytes, {segment.bytes} were sealed", name)
            elif sha256 != segment.sha256:
                yield Problem(f"{name} is not the file that was sealed: its hash differs", name)
            contents = Contents(segment.first)
            with pa.memory_map(str(path)) as source:
                for batch in read_file(source):
                    contents.add(batch)
    except NotFound:
        yield Problem(f"{name} is missing", name)
        return
    except BackendFailure as error:
        if error.retryable:
            raise
        yield Problem(f"{name}: {error.message}", name)
        return
    if contents.count != segment.count:
        yield Problem(f"{name} holds {contents.count} events, {segment.count} were sealed", name)
    elif (contents.tip, digest_text(contents.digest)) != (segment.tip, segment.digest):
        yield Problem(f"{name} holds other events than were sealed: their digest differs", name)


def check_segment(place: Place, url: str | None, segment: Segment) -> list[Problem]:
    """Compare a segment with its seal and, where a log is given, each event with the log's."""
    found = list(check_file(place, segment))
    if url is None:
        return found
    try:
        with place.file(segment.file) as source:
            kept = read_file(source)
            stored = scan(url, EVERYTHING, segment.first - 1, segment.last)
            problem = _difference(kept, stored, segment)
    except NotFound:
        return found
    except BackendFailure as error:
        if error.retryable:
            raise
        problem = None if found else Problem(f"{segment.file}: {error.message}", segment.file)
    return found if problem is None else [*found, problem]


def _difference(
    kept: Iterable[pa.RecordBatch], stored: Iterable[pa.RecordBatch], segment: Segment
) -> Problem | None:
    """Say where two rows of batches first differ."""
    position = segment.first
    for one, other in _side_by_side(iter(kept), iter(stored)):
        if one is None or other is None:
            where = "the log" if one is None else "the archive"
            return Problem(f"position {position} is only in {where}", segment.file, position)
        if not one.equals(other):
            for row in range(one.num_rows):
                names = [n for n in one.schema.names if one.column(n)[row] != other.column(n)[row]]
                if names:
                    told = f"position {position + row} differs from the log in {', '.join(names)}"
                    return Problem(told, segment.file, position + row)
        position += one.num_rows
    return None


def _side_by_side(
    left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch | None, pa.RecordBatch | None]]:
    """Cut two rows of batches to pieces of equal length."""
    one, other = next(left, None), next(right, None)
    while one is not None and other is not None:
        rows = min(one.num_rows, other.num_rows)
        yield one.slice(0, rows), other.slice(0, rows)
        one, other = one.slice(rows), other.slice(rows)
        one = one if one.num_rows else next(left, None)
        other = other if other.num_rows else next(right, None)
    if one is not None or other is not None:
        yield one, other
