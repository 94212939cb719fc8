"""Projections, logs and a reference fold for tests of projections."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from seriatim import EventRecord, Log, NewEvent, Projection, projection
from seriatim.core.fold import Fold, RowDigest
from seriatim.runs.projection_job import ProjectionJob
from tests.contract.profiles.trace_factories import PAYLOADS

DEAL_DESK = json.loads((Path(__file__).parents[2] / "vectors" / "deal_desk.json").read_text())

SEAT = {"taken": int, "guests": list, "share": float}


def count_seats(state: dict[str, Any] | None, event: EventRecord) -> dict[str, Any] | None:
    """Count the seats of a show; a show without seats has no row."""
    if event.event_type == "seat.emptied":
        return None
    known = state or {"taken": 0, "guests": []}
    guests = [*known["guests"], event.payload["guest"]][-3:]
    return {"taken": known["taken"] + 1, "guests": guests, "share": (known["taken"] + 1) / 7}


def declare_seats(**options: Any) -> Projection:
    """Declare the projection of seats with overrides."""
    declared = {"key": "stream_id", "events": ["seat.*"], "columns": SEAT, **options}
    return projection("seats", **declared)(count_seats)


seats = projection("seats", key="stream_id", events=["seat.*"], columns=SEAT)(count_seats)


def fill(log: Log, count: int, *, shows: int = 7, start: int = 0) -> None:
    """Append seats of some shows, mixed with other events."""
    events = []
    for number in range(start, start + count):
        event_type = "seat.reserved" if number % 4 else "other.thing"
        if number % 23 == 22:
            event_type = "seat.emptied"
        payload = {"guest": f"g{number}", "show": f"s-{number % shows}"}
        events.append(NewEvent(event_type, payload, stream=("show", f"s-{number % shows}")))
    for first in range(0, count, 50):
        log.append(events[first : first + 50])


def fill_traces(log: Log, count: int) -> None:
    """Append complete traces about one entity; the last one is unfinished."""
    for number in range(count):
        trace_id = f"t-{number}"
        types = list(PAYLOADS) if number < count - 1 else list(PAYLOADS)[:4]
        for seq, event_type in enumerate(types):
            log.traces.append_event(_envelope(trace_id, seq, event_type))


def _envelope(trace_id: str, seq: int, event_type: str) -> dict[str, Any]:
    given = DEAL_DESK["events"][0]
    return {
        **given,
        "event_id": f"{trace_id}-{seq}",
        "trace_id": trace_id,
        "trace_seq": seq,
        "event_type": event_type,
        "idempotency_key": f"{trace_id}/{seq}",
        "payload": PAYLOADS[event_type],
    }


def fold_in_python(records: Iterable[EventRecord], declared: Projection) -> Fold:
    """Fold records in plain Python."""
    fold = Fold(declared)
    for record in records:
        wanted = any(
            event in ("*", record.event_type)
            or (event.endswith(".*") and record.event_type.startswith(event[:-1]))
            for event in declared.events
        )
        try:
            key = key_of(declared, record) if wanted else None
        except (TypeError, ValueError) as error:
            fold.record_failure((record.tenant_id, ""), record, error)
            continue
        if key is not None:
            fold.add(key, record)
    return fold


def key_of(declared: Projection, record: EventRecord) -> str | None:
    """Return the key of a record according to the declaration."""
    if declared.stream_types is not None and record.stream_type not in declared.stream_types:
        return None
    return declared.extract_key(record)


def digest_in_python(records: Iterable[EventRecord], declared: Projection) -> str:
    """Return the digest that a read model of these records must have."""
    fold, digest = fold_in_python(records, declared), RowDigest()
    if declared.state is None:
        for (tenant_id, _), kept in fold.state_rows():
            if kept.row is not None:
                digest.add(declared.tables[0], tenant_id, kept.row)
    for name, rows in fold.rows.items():
        for kept in rows.values():
            assert kept.row is not None
            digest.add(declared.table(name), kept.tenant_id, kept.row)
    return digest.text()


def stored_digest(job: ProjectionJob) -> str:
    """Return the digest of the stored read model."""
    with job.model.snapshot() as moment:
        return moment.compute_digest(job.projection).text()


def rows_of(job: ProjectionJob, table: str | None = None) -> dict[Any, dict[str, Any]]:
    """Return the rows of a table by their first key column."""
    wanted = job.projection.table(table) if table else job.projection.tables[0]
    key = next(iter(wanted.key))
    with job.model.snapshot() as moment:
        return {row[key]: row for _, row, _ in moment.rows(job.projection, wanted)}
