"""A range of the log spread over tasks by its streams: each is whole in one of them, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from seriatim.core.event import EventRecord
from seriatim.core.kinds import Rules
from seriatim.core.patterns import Names
from seriatim.pipeline.project.job import SMALL_EVENTS
from seriatim.pipeline.project.shares import MOST
from seriatim.pipeline.records import records_of
from seriatim.pipeline.scan import scan
from seriatim.pipeline.wanted import EVERYTHING, Scan, Share

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_ALIKE = ("tenant_id", "stream_type", "stream_id")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A range of the log, of one tenant or all, and into how many shares its streams fall."""

    url: str
    tenant_id: str | None
    after: int
    until: int
    shares: int

    def events(self, nth: int, wanted: Scan = EVERYTHING) -> Iterator[EventRecord]:
        """Read one share of it."""
        mine = msgspec.structs.replace(wanted, share=Share(_ALIKE, nth, self.shares))
        if self.tenant_id is not None:
            mine = msgspec.structs.replace(mine, tenants=Names((self.tenant_id,)))
        for batch in scan(self.url, mine, self.after, self.until):
            yield from records_of(batch)


def shares_for(spark: SparkSession, events: int) -> int:
    """Return into how many shares a range is worth dividing: a few events are one task's."""
    return 1 if events <= SMALL_EVENTS else min(MOST, spark.sparkContext.defaultParallelism)


def over_shares(spark: SparkSession, shares: int, task: Task, schema: str) -> DataFrame:
    """Give every share's number to a task of its own."""
    return spark.range(0, shares, 1, shares).mapInArrow(task, schema)


def zero_based(rules: Rules) -> frozenset[str]:
    """Return the types of streams whose first number is 0."""
    return frozenset(name for name, kind in rules.kinds.items() if kind.first_seq == 0)
