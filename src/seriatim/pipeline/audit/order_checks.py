"""Audit checks of positions and appends, by tasks that read ranges in the log's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.core.consistency import find_append_problem
from seriatim.pipeline.archive.segment_tasks import PositionRange
from seriatim.pipeline.audit.lenient_scan import scan_leniently

ORDER_COLUMNS = ("position", "append_position", "tenant_id")
MAX_EXAMPLES = 20


class OrderProblems(msgspec.Struct):
    """Problems of positions and appends in a range: all are counted, the first are described.

    Attributes:
        appends: The number of appends that start in the range.
        position_count: The number of missing or repeated positions.
        append_count: The number of events with a wrong append.
        positions: Messages of the first problems of positions.
        append_problems: Messages of the first problems of appends.
    """

    appends: int = 0
    position_count: int = 0
    append_count: int = 0
    position_problems: list[str] = []
    append_problems: list[str] = []

    def add(self, later: OrderProblems) -> None:
        """Add the problems of the next range."""
        self.appends += later.appends
        self.position_count += later.position_count
        self.append_count += later.append_count
        self.position_problems = [*self.position_problems, *later.position_problems][:MAX_EXAMPLES]
        self.append_problems = [*self.append_problems, *later.append_problems][:MAX_EXAMPLES]


def make_order_check(url: str) -> Callable[[PositionRange], OrderProblems]:
    """Return the function with which a task checks a range of a log."""
    return partial(_check, url)


def _check(url: str, span: PositionRange) -> OrderProblems:
    found = OrderProblems()
    # The last row before the range, later that of the previous batch: each row is compared with
    # the one before it, also across batches and tasks.
    before: pa.RecordBatch | None = None
    for batch in scan_leniently(url, ORDER_COLUMNS, max(0, span.first - 2), span.last):
        rows = batch if before is None else pa.concat_batches([before, batch])
        if before is None and rows.column(0)[0].as_py() >= span.first:
            _check_first_row(rows, span.first, found)
        _check_pairs(rows, found)
        before = rows.slice(rows.num_rows - 1)
    last = None if before is None else before.column(0)[0].as_py()
    if last != span.last:
        _add_gap(found, (last or span.first - 1) + 1, span.last)
    return found


def _check_first_row(rows: pa.RecordBatch, first: int, found: OrderProblems) -> None:
    """Check a first row without a predecessor: the log's first event, or one after a gap."""
    position, began = rows.column(0)[0].as_py(), rows.column(1)[0].as_py()
    if position > first:
        _add_gap(found, first, position - 1)
    found.appends += began == position
    tenant_id = rows.column(2)[0].as_py()
    _add_append_problem(found, find_append_problem(position, began, tenant_id, None))


def _add_gap(found: OrderProblems, first: int, last: int) -> None:
    found.position_count += last - first + 1
    text = f"position {first} is" if first == last else f"positions {first} to {last} are"
    if len(found.position_problems) < MAX_EXAMPLES:
        found.position_problems.append(f"{text} missing")


def _add_append_problem(found: OrderProblems, text: str | None) -> None:
    if text is None:
        return
    found.append_count += 1
    if len(found.append_problems) < MAX_EXAMPLES:
        found.append_problems.append(text)


def _check_pairs(rows: pa.RecordBatch, found: OrderProblems) -> None:
    """Compare each row with the one before it.

    Arrow compares whole columns, and only rows that differ are checked in Python: a Python check
    of every row would take longer than reading the log.
    """
    earlier, later = rows.slice(0, rows.num_rows - 1), rows.slice(1)
    position, began, tenant = later.columns
    begins = pc.equal(began, position)
    found.appends += pc.sum(begins).as_py() or 0
    consecutive = pc.equal(position, pc.add(earlier.column(0), 1))
    for row in _find_false(consecutive):
        now, previous = position[row].as_py(), earlier.column(0)[row].as_py()
        if now == previous:
            found.position_count += 1
            if len(found.position_problems) < MAX_EXAMPLES:
                found.position_problems.append(f"position {now} occurs twice")
        else:
            _add_gap(found, previous + 1, now - 1)
    same_append = pc.equal(began, earlier.column(1))
    same_tenant = pc.equal(tenant, earlier.column(2))
    for row in _find_false(pc.or_(begins, pc.and_(same_append, same_tenant))):
        start = earlier.column(1)[row].as_py(), earlier.column(2)[row].as_py()
        fields = position[row].as_py(), began[row].as_py(), tenant[row].as_py()
        _add_append_problem(found, find_append_problem(*fields, start))


def _find_false(mask: pa.Array) -> Iterator[int]:
    if not pc.all(mask).as_py() and len(mask):
        yield from pc.indices_nonzero(pc.invert(mask)).to_pylist()
