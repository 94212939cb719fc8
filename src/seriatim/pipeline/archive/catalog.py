"""What an archive holds, and reading it: for the source, the audit and whoever looks at one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import pyarrow as pa

from seriatim.core.errors import BackendFailure, LogIdentityChanged, NotFound
from seriatim.pipeline.archive.files import read_file
from seriatim.pipeline.archive.place import Folder, Place, open_place
from seriatim.pipeline.archive.seals import (
    HEADER,
    Segment,
    broken,
    chain_problem,
    decoded_epoch,
    decoded_header,
    decoded_segment,
)
from seriatim.pipeline.columns import NAMES
from seriatim.pipeline.digest import digest_text


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """The sealed segments of an archive: one gapless range from position 1.

    `epoch` is the last one of the log in which it was written or compared.
    """

    log_id: str
    epoch: int
    segments: tuple[Segment, ...]

    @property
    def end(self) -> int:
        """The last sealed position, 0 when nothing is sealed."""
        return self.segments[-1].last if self.segments else 0

    @property
    def tip(self) -> str:
        """The id of the event at the sealed end."""
        return self.segments[-1].tip if self.segments else ""

    @property
    def digest(self) -> str:
        """The digest of all sealed events."""
        return self.segments[-1].total if self.segments else digest_text(0)

    def check_log(self, log_id: str, epoch: int, head: int, tip: str | None) -> None:
        """Refuse to go with a log that is not the one archived, or has lost part of it (F8).

        `tip` is the id of the log's event at the sealed end.
        """
        problem = None
        if log_id != self.log_id:
            problem = "is another log's"
        elif head < self.end:
            problem = f"ends at {self.end}, the log at {head}"
        elif tip != self.tip and self.end:
            problem = f"has another event at position {self.end} than the log"
        elif self.end and epoch != self.epoch:
            problem = (
                f"was compared with the log in epoch {self.epoch}, which now is {epoch}: "
                "run seriatim archive, which compares them anew"
            )
        if problem is not None:
            msg = f"the archive {problem}"
            details = {"archived": self.log_id, "log_id": log_id, "end": self.end}
            raise LogIdentityChanged(msg, details=details)


def open_archive(at: str | Place) -> Archive:
    """Read the manifest at a place and check that its seals follow one another.

    `not_found` when there is no archive.
    """
    place = open_place(at)
    try:
        header = decoded_header(place.read(HEADER))
    except NotFound as error:
        msg = f"there is no archive at {place}"
        raise NotFound(msg, details={"place": str(place)}) from error
    found: list[Segment] = []
    for name in _entries(place, "seals"):
        segment = decoded_segment(place.read(name), name)
        if problem := chain_problem(found[-1] if found else None, segment, header.log_id):
            raise broken(problem, name)
        found.append(segment)
    epochs = [decoded_epoch(place.read(name), name).epoch for name in _entries(place, "epochs")]
    epoch = max([*epochs, *(segment.epoch for segment in found)], default=0)
    return Archive(log_id=header.log_id, epoch=epoch, segments=tuple(found))


def _entries(place: Place, under: str) -> list[str]:
    return [name for name in place.names(under) if name.endswith(".json")]


def segments(at: str | Place) -> list[Segment]:
    """Return the sealed segments of an archive, in order."""
    return list(open_archive(at).segments)


def read_segment(
    at: str | Place,
    segment: Segment,
    columns: Sequence[str] | None = None,
    after: int = 0,
    until: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the events of a segment in (after, until], by position, in the columns asked for.

    Row groups outside of the range are not read; one is in memory at a time. Raises
    `BackendFailure` when the file's size, its row count or a position in the range is not as
    sealed. A changed row at its own position has none of these signs: `check_file` finds it.
    """
    wanted = list(NAMES if columns is None else columns)
    low = max(after, segment.first - 1)
    high = segment.last if until is None else min(until, segment.last)
    try:
        yield from _sealed_events(open_place(at), segment, wanted, low, high)
    except NotFound:
        raise _damaged(segment, "is missing") from None


def _sealed_events(
    place: Place, segment: Segment, wanted: list[str], low: int, high: int
) -> Iterator[pa.RecordBatch]:
    size = place.size(segment.file)
    if size != segment.bytes:
        raise _damaged(segment, f"has {size} bytes, {segment.bytes} were sealed")
    read = wanted if "position" in wanted else [*wanted, "position"]
    reached = low
    with place.file(segment.file) as source:
        for batch in read_file(source, read, low, high, count=segment.count):
            end = reached + batch.num_rows
            if not batch.column("position").equals(pa.array(range(reached + 1, end + 1))):
                raise _damaged(segment, f"does not hold every position after {reached} once")
            reached = end
            yield batch.select(wanted)
    if reached != max(low, high):
        raise _damaged(segment, f"ends at position {reached}, not at {high}")


def _damaged(segment: Segment, problem: str) -> BackendFailure:
    msg = f"the archive's {segment.file} {problem}: run seriatim archive verify"
    return BackendFailure(msg, details={"name": segment.file}, retryable=False)


def check_segments(place: Folder, segments: Sequence[Segment]) -> None:
    """Compare the files of segments with their seals: size, row count and every position.

    For readers that open the files themselves. A file that has not changed since it was last
    compared is not read again.
    """
    with ThreadPoolExecutor(_CHECKS_AT_ONCE, "seriatim-seals") as pool:
        list(pool.map(partial(_check_segment, place), segments))


def _check_segment(place: Folder, segment: Segment) -> None:
    try:
        seen = (place, segment.name, segment.sha256, place.version(segment.file))
    except NotFound:
        raise _damaged(segment, "is missing") from None
    if seen in _compared:
        return
    for _ in read_segment(place, segment, ["position"]):
        pass
    if len(_compared) >= _COMPARED_MAX:
        _compared.clear()
    _compared.add(seen)


_CHECKS_AT_ONCE = 8
_COMPARED_MAX = 100_000
_compared: set[tuple[Folder, str, str, tuple[int, ...]]] = set()
