"""The log as a stream: offsets that know their log, batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.streaming import datasource as limits

from seriatim.core.errors import LogIdentityChanged
from seriatim.core.event import LogIdentity
from seriatim.pipeline.archive.catalog import Archive, open_archive
from seriatim.pipeline.database import DRIVER_ERRORS, Connection, explain, find_place
from seriatim.pipeline.options import Options, bad
from seriatim.pipeline.planning import Range
from seriatim.pipeline.reading import read_part
from seriatim.pipeline.scan import Look, look_through
from seriatim.pipeline.sealed import plan
from seriatim.pipeline.wanted import END


class Offset(msgspec.Struct, frozen=True):
    """How far a query has come, in which log: `tip` is the id of the event at its position."""

    position: int
    log_id: str
    epoch: int
    tip: str

    @classmethod
    def read(cls, given: dict[str, Any]) -> Offset:
        """Take an offset from a checkpoint."""
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            msg = f"the checkpoint holds no offset of a log ({error}): is it of another source?"
            raise LogIdentityChanged(msg) from None

    def shown(self) -> dict[str, Any]:
        """Return the form that Spark keeps."""
        return msgspec.structs.asdict(self)

    def check(self, seen: Look, tip: str | None) -> None:
        """Stop a query whose past is not this log's."""
        problem = None
        if self.log_id != seen.identity.log_id:
            problem = "belongs to another log"
        elif self.epoch != seen.identity.epoch:
            problem = f"is of epoch {self.epoch}, the log is in epoch {seen.identity.epoch}"
        elif self.position > seen.head:
            problem = f"stands at {self.position}, the log ends at {seen.head}"
        elif self.position and tip != self.tip:
            problem = f"has seen another event at position {self.position}"
        if problem is not None:
            msg = (
                f"the checkpoint {problem}: the log was restored or replaced; check what the "
                "query has written, then start it with a new checkpoint"
            )
            raise LogIdentityChanged(msg, details={"position": self.position})


class Eyes:
    """Looks at the log again and again; a server's connection is kept between looks."""

    def __init__(self, url: str) -> None:
        self._place = find_place(url)
        self._kept: Connection | None = None

    def look(self, at: int, until: int) -> Look:
        """Look at the log, over a new connection if the old one is gone."""
        if self._kept is not None:
            try:
                return look_through(self._kept, self._place, at, until)
            except DRIVER_ERRORS:
                self.close()
        try:
            self._kept = Connection(self._place)
            return look_through(self._kept, self._place, at, until)
        except DRIVER_ERRORS as error:
            self.close()
            raise explain(self._place, error, "looking at the log") from None
        finally:
            if self._place.backend == "sqlite":
                self.close()  # a file may be replaced under an open connection

    def close(self) -> None:
        """Let the connection go."""
        kept, self._kept = self._kept, None
        if kept is not None:
            try:
                kept.close()
            except DRIVER_ERRORS:
                return  # it was broken already


class StreamReader(ds.DataSourceStreamReader, limits.SupportsTriggerAvailableNow):
    """Follows the log; a query goes on from its checkpoint, or stops if that is of another log."""

    def __init__(self, options: Options) -> None:
        if options.ending is not None:
            raise bad("endingPosition", "is for batches; a stream has no end")
        self._options = options
        self._target = END
        self._known: Archive | None = None
        self._eyes = Eyes(options.url)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint begins."""
        starting = self._options.starting
        wanted = {"earliest": 0, "latest": END}.get(str(starting), starting)
        seen = self._eyes.look(0, int(wanted))
        if isinstance(starting, int) and starting > seen.head:
            raise bad("startingPosition", f"lies beyond the log's end, which is {seen.head}")
        return _offset(seen.identity, seen.until, seen.tip_until).shown()

    def latestOffset(self, start: dict[str, Any], limit: limits.ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next batch goes."""
        begin = Offset.read(start)
        until = self._target
        if isinstance(limit, limits.ReadMaxRows):
            until = min(until, begin.position + limit.max_rows)
        seen = self._eyes.look(begin.position, until)
        begin.check(seen, seen.tip_at)
        if seen.until <= begin.position:
            return start
        return _offset(seen.identity, seen.until, seen.tip_until).shown()

    def getDefaultReadLimit(self) -> limits.ReadLimit:  # noqa: N802
        """Return the bound of a batch."""
        most = self._options.max_events
        return limits.ReadAllAvailable() if most is None else limits.ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the log's end, for the query's progress."""
        seen = self._eyes.look(0, END)
        return _offset(seen.identity, seen.until, seen.tip_until).shown()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the log ends now: such a query goes so far."""
        self._target = self._eyes.look(0, END).head

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ds.InputPartition]:
        """Cut a batch, which after a restart may be one that an earlier run had planned."""
        begin, finish = Offset.read(start), Offset.read(end)
        seen = self._eyes.look(begin.position, finish.position)
        begin.check(seen, seen.tip_at)
        finish.check(seen, seen.tip_until)
        archive = self._archive(begin.position)
        return [*plan(archive, begin.position, finish.position, self._options.partitions)]

    def _archive(self, position: int) -> Archive | None:
        """Return the archive for a batch from this position, read once: what is sealed stays."""
        if self._options.archive is None:
            return None
        if self._known is None:
            found = open_archive(self._options.archive)
            seen = self._eyes.look(found.end, END)
            found.check_log(*seen.identity_and_head, seen.tip_at)
            self._known = found
        return self._known if position < self._known.end else None

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part."""
        if not isinstance(partition, Range):
            raise TypeError(type(partition).__name__)
        return read_part(self._options, self._options.scan, partition)

    def stop(self) -> None:
        """Let the connection go when the query ends."""
        self._eyes.close()


def _offset(identity: LogIdentity, position: int, tip: str | None) -> Offset:
    return Offset(position, identity.log_id, identity.epoch, tip or "")
