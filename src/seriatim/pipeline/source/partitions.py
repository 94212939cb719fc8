"""Partitions of a range of positions: the parts that Spark tasks read."""

from __future__ import annotations

from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from seriatim.config import available_cores

SINGLE_TASK_EVENTS = 20_000  # events: a smaller range is faster in one task than in two
MIN_TASK_EVENTS = 10_000
MAX_TASK_EVENTS = 250_000


class RangePartition(InputPartition):
    """The range of positions (after, until] that one task reads."""

    def __init__(self, after: int, until: int) -> None:
        super().__init__((after, until))
        self.after = after
        self.until = until


def split_range(after: int, until: int, count: int | None = None) -> list[RangePartition]:
    """Split a range into partitions of nearly equal size.

    Args:
        after: The position before the range.
        until: The last position of the range.
        count: The number of partitions; by default it depends on the size and the cores.

    Returns:
        The partitions in order; none if the range is empty.
    """
    size = max(0, until - after)
    if size == 0:
        return []
    parts = min(count or _choose_count(size), size)
    bounds = [after + size * nth // parts for nth in range(parts + 1)]
    return [RangePartition(low, high) for low, high in pairwise(bounds)]


def _choose_count(size: int) -> int:
    if size <= SINGLE_TASK_EVENTS:
        return 1
    # One task per core, unless tasks would become too small; more if they would become too large.
    return max(min(available_cores(), size // MIN_TASK_EVENTS), -(-size // MAX_TASK_EVENTS))
