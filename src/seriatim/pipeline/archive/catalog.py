"""Contents of an archive: its sealed segments, and how to read and check them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import pyarrow as pa

from seriatim.core.errors import BackendFailure, LogIdentityChanged, NotFound
from seriatim.pipeline.archive.manifest import (
    HEADER_NAME,
    Segment,
    damaged_archive_error,
    decode_epoch,
    decode_header,
    decode_segment,
    find_chain_problem,
)
from seriatim.pipeline.archive.segment_file import read_segment_file
from seriatim.pipeline.columns import EVENT_COLUMNS
from seriatim.pipeline.digest import format_digest
from seriatim.pipeline.object_storage import FolderStorage, ObjectStorage, open_storage


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """The sealed segments of an archive: one gapless range from position 1.

    Attributes:
        log_id: The id of the archived log.
        epoch: The last epoch of the log in which the archive was written or compared.
        segments: The segments, in order.
    """

    log_id: str
    epoch: int
    segments: tuple[Segment, ...]

    @property
    def end(self) -> int:
        """The last sealed position, 0 if nothing is sealed."""
        return self.segments[-1].last if self.segments else 0

    @property
    def last_event_id(self) -> str:
        """The id of the event at the last sealed position."""
        return self.segments[-1].last_event_id if self.segments else ""

    @property
    def digest(self) -> str:
        """The digest of all sealed events."""
        return self.segments[-1].total if self.segments else format_digest(0)

    def check_log(self, log_id: str, epoch: int, head: int, event_id: str | None) -> None:
        """Check that this archive is the beginning of a log (F8).

        Args:
            log_id: The id of the log.
            epoch: The epoch of the log.
            head: The last position of the log.
            event_id: The id of the log's event at the last sealed position.

        Raises:
            LogIdentityChanged: The archive belongs to another log, the log has lost or changed
                archived events, or it was restored since the archive was last compared.
        """
        problem = None
        if log_id != self.log_id:
            problem = f"belongs to another log ({self.log_id})"
        elif head < self.end:
            problem = f"ends at {self.end}, the log at {head}"
        elif event_id != self.last_event_id and self.end:
            problem = f"has another event at position {self.end} than the log"
        elif self.end and epoch != self.epoch:
            problem = (
                f"was last compared with the log in epoch {self.epoch}, the log is now in epoch "
                f"{epoch}: run seriatim archive to compare them again"
            )
        if problem is not None:
            msg = f"the archive {problem}"
            details = {"archived": self.log_id, "log_id": log_id, "end": self.end}
            raise LogIdentityChanged(msg, details=details)


def open_archive(at: str | ObjectStorage) -> Archive:
    """Read the manifest of an archive and check that its seals form an unbroken chain.

    Args:
        at: A path, `file:///path` or `s3://bucket/prefix`, or an open storage.

    Raises:
        NotFound: There is no archive.
        BackendFailure: The manifest is damaged, or the storage failed.

    Example:
        archive = open_archive("/backups/orders")
        print(archive.end, archive.digest)
    """
    storage = open_storage(at)
    try:
        header = decode_header(storage.read(HEADER_NAME))
    except NotFound as error:
        msg = f"there is no archive at {storage}"
        raise NotFound(msg, details={"place": str(storage)}) from error
    segments: list[Segment] = []
    for name in _list_entries(storage, "seals"):
        segment = decode_segment(storage.read(name), name)
        if problem := find_chain_problem(
            segments[-1] if segments else None, segment, header.log_id
        ):
            raise damaged_archive_error(problem, name)
        segments.append(segment)
    names = _list_entries(storage, "epochs")
    epochs = [decode_epoch(storage.read(name), name).epoch for name in names]
    epoch = max([*epochs, *(segment.epoch for segment in segments)], default=0)
    return Archive(log_id=header.log_id, epoch=epoch, segments=tuple(segments))


def _list_entries(storage: ObjectStorage, folder: str) -> list[str]:
    return [name for name in storage.list_names(folder) if name.endswith(".json")]


def list_segments(at: str | ObjectStorage) -> list[Segment]:
    """Return the sealed segments of an archive, in order."""
    return list(open_archive(at).segments)


def read_segment(
    at: str | ObjectStorage,
    segment: Segment,
    columns: Sequence[str] | None = None,
    after: int = 0,
    until: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the events of a segment in the range (after, until], in the order of positions.

    Row groups outside of the range are not read, and one row group is in memory at a time. A row
    that was changed in place passes the checks of this function; `check_file` detects it.

    Args:
        at: The location of the archive.
        segment: The segment to read.
        columns: The columns to return; by default all.
        after: The position before the range.
        until: The last position of the range; by default the end of the segment.

    Raises:
        BackendFailure: The file is missing, or its size, row count or a position in the range
            differs from the seal.
    """
    selected = list(EVENT_COLUMNS if columns is None else columns)
    low = max(after, segment.first - 1)
    high = segment.last if until is None else min(until, segment.last)
    try:
        yield from _read_checked(open_storage(at), segment, selected, low, high)
    except NotFound:
        raise _segment_error(segment, "is missing") from None


def _read_checked(
    storage: ObjectStorage, segment: Segment, columns: list[str], low: int, high: int
) -> Iterator[pa.RecordBatch]:
    size = storage.size(segment.file)
    if size != segment.bytes:
        raise _segment_error(segment, f"has {size} bytes, {segment.bytes} were sealed")
    # The position column is always read, because it proves that no event is missing.
    names = columns if "position" in columns else [*columns, "position"]
    reached = low
    with storage.open_reader(segment.file) as source:
        for batch in read_segment_file(source, names, low, high, count=segment.count):
            end = reached + batch.num_rows
            if not batch.column("position").equals(pa.array(range(reached + 1, end + 1))):
                raise _segment_error(segment, f"lacks or repeats a position after {reached}")
            reached = end
            yield batch.select(columns)
    if reached != max(low, high):
        raise _segment_error(segment, f"ends at position {reached}, not at {high}")


def _segment_error(segment: Segment, problem: str) -> BackendFailure:
    msg = f"archive file {segment.file} {problem}: run seriatim archive verify"
    return BackendFailure(msg, details={"name": segment.file}, retryable=False)


def check_segments(storage: FolderStorage, segments: Sequence[Segment]) -> None:
    """Compare the files of segments with their seals: size, row count and every position.

    This is for readers that open the files themselves. A file that has not changed since this
    process last compared it is not read again.

    Args:
        storage: The folder of the archive.
        segments: The segments to check.

    Raises:
        BackendFailure: A file is missing or differs from its seal.
    """
    # Threads, because pyarrow reads and decodes files without the lock of the interpreter.
    with ThreadPoolExecutor(_CHECK_THREADS, "seriatim-seals") as pool:
        list(pool.map(partial(_check_segment, storage), segments))


def _check_segment(storage: FolderStorage, segment: Segment) -> None:
    try:
        key = (storage, segment.seal_name, segment.sha256, storage.version(segment.file))
    except NotFound:
        raise _segment_error(segment, "is missing") from None
    # The version of the file is part of the key: a file that was replaced is read again.
    if key in _checked:
        return
    for _ in read_segment(storage, segment, ["position"]):
        pass
    if len(_checked) >= _CHECKED_MAX:
        _checked.clear()
    _checked.add(key)


_CHECK_THREADS = 8
_CHECKED_MAX = 100_000  # bounds the memory of a long-running process
_checked: set[tuple[FolderStorage, str, str, tuple[int, ...]]] = set()
