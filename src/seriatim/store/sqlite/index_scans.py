"""Scan the log along its indexes, and merge several scans in order of position."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Any

import msgspec

from seriatim.core.event import EventRecord
from seriatim.core.patterns import NameFilter
from seriatim.store.common import PageBounds, take_page
from seriatim.store.sqlite.statements import INDEX_SCANS, RECORD_COLUMNS, SQL, Row, decode_record

INDEX_SCANS_MAX = 256  # merged in one read; with more the tenant's events are scanned
EXPANDED_TYPES_MAX = 64  # types per pattern; for more types the tenant's events are scanned
NO_UPPER_BOUND = (1 << 63) - 1
UNINDEXED_SEQ_MAX = 100  # first events of a stream that the index by type omits: see the schema

_POSITIONS = {
    name: text.replace(RECORD_COLUMNS, "events.position") for name, text in INDEX_SCANS.items()
}


class IndexScan(msgspec.Struct, frozen=True):
    """One scan: a statement of the SQL file, its parameters, range and further conditions."""

    name: str
    values: dict[str, Any]
    conditions: tuple[str, ...] = ()
    after: int = 0
    until: int = NO_UPPER_BOUND
    until_seq: int = NO_UPPER_BOUND

    def fetch_rows(
        self,
        connection: sqlite3.Connection,
        after: int,
        until: int,
        *,
        limit: int,
        newest_first: bool,
    ) -> Iterable[Row]:
        """Return an iterator over the rows in (after, until]; the first column is the position."""
        return self._run(connection, after, until, limit, newest_first=newest_first)

    def fetch_positions(
        self, connection: sqlite3.Connection, page: PageBounds
    ) -> Iterable[tuple[int]]:
        """Return an iterator over the positions of a page's rows."""
        text = _POSITIONS[self.name]
        return self._run(
            connection,
            page.after,
            page.until,
            page.limit,
            newest_first=page.newest_first,
            text=text,
        )

    def _run(
        self,
        connection: sqlite3.Connection,
        after: int,
        until: int,
        limit: int,
        *,
        newest_first: bool,
        text: str | None = None,
    ) -> Iterable[Any]:
        after, until = max(after, self.after), min(until, self.until)
        if after >= until:
            return ()
        values = {**self.values, "after": after, "until": until, "limit": limit}
        if self.name == "scan_tags":
            values["start"] = until + 1 if newest_first else after
        if self.name == "scan_stream":
            # The index of a stream is ordered by sequence number, so the range of positions is
            # converted to one of sequence numbers.
            stream = values["stream"]
            since_seq = values.get("since_seq")
            values["after_seq"] = max(
                find_seq_at(connection, stream, after), -1 if since_seq is None else since_seq
            )
            values["until_seq"] = min(find_seq_at(connection, stream, until), self.until_seq)
            if values["after_seq"] >= values["until_seq"]:
                return ()
        return connection.execute(self.build_sql(text, newest_first=newest_first), values)

    def build_sql(self, text: str | None = None, *, newest_first: bool) -> str:
        """Return the SQL of the scan; tests also use it to inspect query plans."""
        conditions = "".join(f"and {condition} " for condition in self.conditions)
        text = (text or INDEX_SCANS[self.name]).replace("{conditions}", conditions)
        if self.name == "scan_tags":
            keys = ", ".join(f"({turn}, :key_{turn})" for turn in range(self.values["keys"]))
            text = text.replace("{keys}", keys).replace(
                "{seek_condition}", _SEEK_CONDITIONS[newest_first]
            )
        return text.replace("{direction}", "desc" if newest_first else "asc")


_SEEK_CONDITIONS = {
    False: "tagged.position >= leap.position + (leap.agreed = :keys) and tagged.position <= :until",
    True: "tagged.position <= leap.position - (leap.agreed = :keys) and tagged.position > :after",
}


def expand_patterns(
    connection: sqlite3.Connection, tenant_id: str, names: NameFilter
) -> NameFilter:
    """Return the types that match patterns; the patterns themselves if these are too many.

    A read ends at a head that was read before, so every type in its range is stored by now.
    """
    types = dict.fromkeys(names.values)
    for first, end in names.prefix_ranges():
        limit = EXPANDED_TYPES_MAX + 1 - len(types)
        if limit > 0:
            values = {"tenant": tenant_id, "first": first, "end": end, "limit": limit}
            rows = connection.execute(SQL["list_event_types"], values)
            types.update(dict.fromkeys(row[0] for row in rows))
    return names if len(types) > EXPANDED_TYPES_MAX else NameFilter(tuple(types))


def build_type_condition(names: NameFilter, values: dict[str, Any]) -> str:
    """Return the condition on types and patterns, and bind its parameters in `values`."""
    alternatives = []
    if names.values:
        alternatives.append(f"events.event_type in ({bind_list('type', names.values, values)})")
    for number, (first, end) in enumerate(names.prefix_ranges()):
        values[f"first_{number}"], values[f"end_{number}"] = first, end
        alternatives.append(
            f"(events.event_type >= :first_{number} and events.event_type < :end_{number})"
        )
    return f"({' or '.join(alternatives) or '1 = 0'})"


def bind_list(name: str, items: Iterable[Any], values: dict[str, Any]) -> str:
    """Bind each item to a parameter in `values`, and return the SQL list of the parameters."""
    names = []
    for number, item in enumerate(items):
        values[f"{name}_{number}"] = item
        names.append(f":{name}_{number}")
    return ", ".join(names)


def plan_stream_type_scans(values: dict[str, Any], conditions: tuple[str, ...]) -> list[IndexScan]:
    """Return the scans for one type in one stream.

    The index by type omits the first events of a stream; a scan of the stream covers them.
    """
    of_type = (*conditions, "events.event_type = :type")
    return [
        IndexScan("scan_stream_type", values, conditions),
        IndexScan("scan_stream", values, of_type, until_seq=UNINDEXED_SEQ_MAX),
    ]


def find_seq_at(connection: sqlite3.Connection, stream_key: bytes, position: int) -> int:
    """Return the sequence number of a stream's last event up to a position, -1 if there is none.

    Numbers are contiguous and rise with the position, so a binary search needs no other index.
    """
    if position <= 0:
        return -1
    end = connection.execute(SQL["find_stream_end"], (stream_key,)).fetchone()
    if end is None:
        return -1
    high, last = end
    if last <= position:
        return int(high)
    low, first = connection.execute(SQL["find_stream_start"], (stream_key,)).fetchone()
    if first > position:
        return -1
    while high - low > 1:  # the result is in [low, high)
        middle = (low + high) // 2
        values = (stream_key, middle)
        (middle_position,) = connection.execute(SQL["find_position_of_seq"], values).fetchone()
        low, high = (middle, high) if middle_position <= position else (low, middle)
    return int(low)


def read_page(
    connection: sqlite3.Connection, scans: list[IndexScan], page: PageBounds
) -> list[EventRecord]:
    """Return one page of the records that any scan finds, without duplicates, in order."""
    if len(scans) == 1:
        rows = scans[0].fetch_rows(
            connection, page.after, page.until, limit=page.limit, newest_first=page.newest_first
        )
    else:
        rows = _fetch_rows_at(connection, _merge_positions(connection, scans, page))
    return take_page(map(decode_record, rows), page.limit, page.max_bytes)


def _merge_positions(
    connection: sqlite3.Connection, scans: list[IndexScan], page: PageBounds
) -> Iterator[int]:
    """Yield the positions that the scans find, without duplicates.

    A merge holds one row of each scan in memory; without payloads these rows are small.
    """
    positions = [scan.fetch_positions(connection, page) for scan in scans]
    last = 0
    for (position,) in merge(*positions, reverse=page.newest_first):
        if position != last:
            last = position
            yield position


def _fetch_rows_at(connection: sqlite3.Connection, positions: Iterable[int]) -> Iterator[Row]:
    for position in positions:
        yield from connection.execute(SQL["find_event_at"], (position,))


def find_highest_position(
    connection: sqlite3.Connection, scans: list[IndexScan], after: int, until: int
) -> int | None:
    """Return the highest position that any scan finds; each scan only looks above the last one."""
    highest = after
    for scan in scans:
        for row in scan.fetch_rows(connection, highest, until, limit=1, newest_first=True):
            highest = row[0]
    return highest if highest > after else None
