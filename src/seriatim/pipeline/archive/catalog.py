"""What an archive holds, and reading it: for the source, the audit and whoever looks at one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from seriatim.core.errors import LogIdentityChanged, NotFound
from seriatim.pipeline.archive.files import read_file
from seriatim.pipeline.archive.place import Place, open_place
from seriatim.pipeline.archive.seals import (
    HEADER,
    Segment,
    broken,
    chain_problem,
    decoded_epoch,
    decoded_header,
    decoded_segment,
)
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

    Row groups outside of the range are not read; one is in memory at a time.
    """
    with open_place(at).file(segment.file) as source:
        yield from read_file(source, columns, after, until)
