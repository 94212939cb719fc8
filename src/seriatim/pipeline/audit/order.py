"""The checks of an audit that need the log's order: a task reads a range and what precedes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.pipeline.archive.tasks import Span
from seriatim.pipeline.audit.rows import read_leniently

COLUMNS = ("position", "append_position", "tenant_id")
KEPT_MAX = 20


class Disorder(msgspec.Struct):
    """What is wrong with the order of a range: all of it counted, the first of it told."""

    appends: int = 0
    position_count: int = 0
    append_count: int = 0
    positions: list[str] = []
    append_problems: list[str] = []

    def add(self, later: Disorder) -> None:
        """Add what was found in the range behind this one."""
        self.appends += later.appends
        self.position_count += later.position_count
        self.append_count += later.append_count
        self.positions = [*self.positions, *later.positions][:KEPT_MAX]
        self.append_problems = [*self.append_problems, *later.append_problems][:KEPT_MAX]


def check_order(url: str) -> Callable[[Span], Disorder]:
    """Return what a task does with a range."""
    return partial(_check, url)


def _check(url: str, span: Span) -> Disorder:
    found = Disorder()
    before: pa.RecordBatch | None = None  # the row before the range, then before each batch
    for batch in read_leniently(url, COLUMNS, max(0, span.first - 2), span.last):
        rows = batch if before is None else pa.concat_batches([before, batch])
        if before is None and rows.column(0)[0].as_py() >= span.first:
            _check_beginning(rows, span.first, found)
        _check_pairs(rows, found)
        before = rows.slice(rows.num_rows - 1)
    last = None if before is None else before.column(0)[0].as_py()
    if last != span.last:
        _gap(found, (last or span.first - 1) + 1, span.last)
    return found


def _check_beginning(rows: pa.RecordBatch, first: int, found: Disorder) -> None:
    """Look at a first row that has none before it: the log's own, or one behind a gap."""
    position, began = rows.column(0)[0].as_py(), rows.column(1)[0].as_py()
    if position > first:
        _gap(found, first, position - 1)
    if began == position:
        found.appends += 1
    else:
        _append_problem(found, f"position {position} says its append began at {began}")


def _gap(found: Disorder, first: int, last: int) -> None:
    found.position_count += last - first + 1
    text = f"position {first} is" if first == last else f"positions {first} to {last} are"
    if len(found.positions) < KEPT_MAX:
        found.positions.append(f"{text} missing")


def _append_problem(found: Disorder, text: str) -> None:
    found.append_count += 1
    if len(found.append_problems) < KEPT_MAX:
        found.append_problems.append(text)


def _check_pairs(rows: pa.RecordBatch, found: Disorder) -> None:
    """Compare each row with the one before it."""
    earlier, later = rows.slice(0, rows.num_rows - 1), rows.slice(1)
    position, began, tenant = later.columns
    begins = pc.equal(began, position)
    found.appends += pc.sum(begins).as_py() or 0
    steps = pc.equal(position, pc.add(earlier.column(0), 1))
    for row in _where_not(steps):
        now, then = position[row].as_py(), earlier.column(0)[row].as_py()
        if now == then:
            found.position_count += 1
            if len(found.positions) < KEPT_MAX:
                found.positions.append(f"position {now} is there twice")
        else:
            _gap(found, then + 1, now - 1)
    same = pc.equal(began, earlier.column(1))
    mine = pc.equal(tenant, earlier.column(2))
    for row in _where_not(pc.or_(begins, pc.and_(same, mine))):
        where = f"position {position[row]}"
        if same[row].as_py():
            text = f"{where} is another tenant's than the rest of its append"
        else:
            text = (
                f"{where} says its append began at {began[row]}, "
                f"the one before it at {earlier.column(1)[row]}"
            )
        _append_problem(found, text)


def _where_not(holds: pa.Array) -> Iterator[int]:
    if not pc.all(holds).as_py() and len(holds):
        yield from pc.indices_nonzero(pc.invert(holds)).to_pylist()
