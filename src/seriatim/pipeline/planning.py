"""How a range of positions is cut into the parts that Spark's tasks read."""

from __future__ import annotations

from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from seriatim.config import cores

ALONE = 20_000  # below this, a second task costs more than it saves
LEAST = 10_000
MOST = 250_000


class Range(InputPartition):
    """The positions after one and up to another."""

    def __init__(self, after: int, until: int) -> None:
        super().__init__((after, until))
        self.after = after
        self.until = until


def cut(after: int, until: int, wanted: int | None = None) -> list[Range]:
    """Cut a range into as many parts as are wanted, or as its size suggests."""
    count = max(0, until - after)
    if count == 0:
        return []
    parts = min(wanted or _suggested(count), count)
    bounds = [after + count * nth // parts for nth in range(parts + 1)]
    return [Range(low, high) for low, high in pairwise(bounds)]


def _suggested(count: int) -> int:
    if count <= ALONE:
        return 1
    return max(min(cores(), count // LEAST), -(-count // MOST))
