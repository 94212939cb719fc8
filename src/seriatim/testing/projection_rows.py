"""Fold a list of events with a projection, on the local engine and in a database of its own."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

from seriatim.core.errors import InvalidArgument
from seriatim.core.event import EventRecord
from seriatim.core.fold import Failure
from seriatim.core.kinds import Declaration
from seriatim.core.projection import Projection
from seriatim.factory import Log, open_log
from seriatim.log.catalogue import Catalogue
from seriatim.store.common import matches_spec, take_page
from seriatim.store.memory import MemoryStore
from seriatim.store.port import ReadSpec
from seriatim.testing.history import HistoryEvent, append_history

_ALL_SPLITS_MAX = 5  # events, which are split in 16 ways
_SAMPLED_SPLITS = 8
_SAMPLED_CUTS = 4


class FoldedRows(list[dict[str, Any]]):
    """The rows of the first table of a projection, in the order of its key.

    Attributes:
        tables: The rows of each table, by name.
        failures: The events that the projection skipped, or parked with their keys.
    """

    def __init__(self, tables: dict[str, list[dict[str, Any]]], failures: list[Failure]) -> None:
        super().__init__(next(iter(tables.values())))
        self.tables = tables
        self.failures = failures


class RecordedStore(MemoryStore):
    """A store of given records at their own positions, of which the first ones are visible.

    Args:
        records: The records, by ascending position and of one log.
    """

    def __init__(self, records: Sequence[EventRecord]) -> None:
        super().__init__()
        self._recorded = records
        self.visible = len(records)

    def head(self) -> int:
        """Return the position of the last visible record."""
        return self._recorded[self.visible - 1].position if self.visible else 0

    def read(self, spec: ReadSpec) -> list[EventRecord]:
        """Return the visible records that match."""
        until = self.head() if spec.until is None else spec.until
        matching = (
            record
            for record in self._recorded[: self.visible]
            if spec.after < record.position <= until and matches_spec(spec, record)
        )
        return take_page(matching, spec.limit, spec.max_bytes)

    def event_id_at(self, position: int) -> str | None:
        """Return the id of the record at a position, or a name for a position that is missing."""
        ids = {record.position: record.event_id for record in self._recorded}
        return ids.get(position, f"missing-{position}")


def fold(
    projection: Projection,
    events: Iterable[HistoryEvent],
    *,
    catalogue: Catalogue | None = None,
    declarations: Sequence[Declaration] = (),
) -> FoldedRows:
    """Return the rows of a projection after some events.

    A log in memory numbers the events, and the local engine folds them into tables of a temporary
    database: keys, upcasters, column types and failures are those of a real run.

    Args:
        projection: The declaration.
        events: `NewEvent` values, mappings of their fields, event types or instances of classes of
            the catalogue; or records, which keep their positions.
        catalogue: The catalogue of the classes.
        declarations: What the log declares first, such as a `StreamKind`.

    Returns:
        The rows of the first table as a list, with `tables` and `failures`.

    Raises:
        ProjectionFailed: An event failed, and the projection stops at failures.
        InvalidArgument: The projection is a DataFrame transformation, or an event is malformed.

    Example:
        from seriatim.testing import fold

        @projection("seats", key="payload.seat", columns={"guest": str}, events=["seat.*"])
        def seats(row, event):
            return {"guest": event.payload["guest"]}

        booked = NewEvent("seat.booked", {"seat": "12A", "guest": "ann"})
        assert fold(seats, [booked]) == [{"key": "12A", "guest": "ann"}]
    """
    records = _make_records(events, catalogue, declarations)
    return _fold_split(projection, records, [len(records)])


def check_batches(
    projection: Projection,
    events: Iterable[HistoryEvent],
    *,
    catalogue: Catalogue | None = None,
    declarations: Sequence[Declaration] = (),
) -> None:
    """Check that a projection has the same rows, however its events are split into batches.

    A fold that keeps something in memory between events, or whose state is not restored from its
    row, passes other tests and fails this one. Up to five events are split in every way; more, in a
    fixed sample of ways.

    Args:
        projection: The declaration.
        events: As for `fold`.
        catalogue: The catalogue of the classes.
        declarations: What the log declares first, such as a `StreamKind`.

    Raises:
        AssertionError: A split gives other rows or failures; the message names both.
        ProjectionFailed: An event failed, and the projection stops at failures.

    Example:
        from seriatim.testing import check_batches

        @projection("totals", key="payload.seat", columns={"bookings": int})
        def totals(row, event):
            return {"bookings": row["bookings"] + 1 if row else 1}

        check_batches(totals, [NewEvent("seat.booked", {"seat": "12A"}) for _ in range(6)])
    """
    records = _make_records(events, catalogue, declarations)
    whole = _fold_split(projection, records, [len(records)])
    # Each part in a run of its own, which loads the states from the tables.
    for ends in _list_splits(len(records)):
        where = f"runs that end after events {', '.join(map(str, ends))}"
        _compare(projection, where, whole, _fold_split(projection, records, ends))
    # Parts of one run, which keeps the states in memory.
    head = records[-1].position if records else 0
    for parts in range(2, min(len(records), _ALL_SPLITS_MAX) + 1):
        split = _fold_split(projection, records, [len(records)], head // parts)
        _compare(projection, f"{parts} batches in one run", whole, split)


def _make_records(
    events: Iterable[HistoryEvent],
    catalogue: Catalogue | None,
    declarations: Sequence[Declaration],
) -> list[EventRecord]:
    """Return events as records of one log."""
    items = list(events)
    recorded = [item for item in items if isinstance(item, EventRecord)]
    if not recorded:
        with open_log("memory:") as log:
            log.declare(*declarations)
            return append_history(log, items, catalogue)
    positions = [record.position for record in recorded]
    if len(recorded) < len(items) or positions != sorted(set(positions)):
        msg = "events must be records of one log by ascending position, or all of them new"
        raise InvalidArgument(msg, details={"argument": "events"})
    if len({record.tenant_id for record in recorded}) > 1:
        msg = "events must be records of one tenant: a read model belongs to one"
        raise InvalidArgument(msg, details={"argument": "events"})
    return recorded


@contextmanager
def _open_recorded(records: Sequence[EventRecord]) -> Iterator[tuple[Log, RecordedStore]]:
    """Open a log of records, with the temporary read models of a log in memory."""
    store = RecordedStore(records)
    with open_log("memory:") as scratch:
        tenant_id = records[0].tenant_id if records else scratch.tenant_id
        yield Log(store, tenant_id=tenant_id, read_models=scratch.read_models), store


def _fold_split(
    projection: Projection,
    records: Sequence[EventRecord],
    ends: Sequence[int],
    batch_events: int | None = None,
) -> FoldedRows:
    """Fold records in one run for each part, which ends after that many records."""
    with _open_recorded(records) as (log, store):
        projections = log.projections
        for end in ends:
            store.visible = end
            # A batch is a range of positions, and those of given records may have gaps.
            projections.run(projection, batch_events=max(batch_events or store.head(), 1))
        tables = {
            table.name: list(projections.rows(projection, table.name))
            for table in projection.tables
        }
        failures = [stored.failure for stored in projections.failures(projection.name)]
    return FoldedRows(tables, failures)


def _list_splits(count: int) -> list[list[int]]:
    """Return ways to split a number of events into parts, as the ends of the parts."""
    inner = range(1, count)
    if count <= _ALL_SPLITS_MAX:
        sizes = range(1, count)
        return [[*cuts, count] for size in sizes for cuts in combinations(inner, size)]
    chance = random.Random(0)  # noqa: S311 - the same sample in every run
    samples = [chance.sample(inner, _SAMPLED_CUTS) for _ in range(_SAMPLED_SPLITS)]
    return [[*sorted(cuts), count] for cuts in samples]


def _compare(projection: Projection, where: str, whole: FoldedRows, split: FoldedRows) -> None:
    for table in projection.tables:
        one, other = whole.tables[table.name], split.tables[table.name]
        if one != other:
            found = next((row for row in other if row not in one), None)
            expected = next((row for row in one if row not in other), None)
            msg = (
                f"projection {projection.name} depends on its batches: with {where}, table "
                f"{table.name} has the row {found}, and after one fold {expected}"
            )
            raise AssertionError(msg)
    if whole.failures != split.failures:
        msg = (
            f"projection {projection.name} depends on its batches: with {where}, the failures are "
            f"{split.failures}, and after one fold {whole.failures}"
        )
        raise AssertionError(msg)
