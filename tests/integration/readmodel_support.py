"""Projections, rows and cursor steps for tests of read models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from seriatim.core.event import EventRecord, LogIdentity
from seriatim.core.fold import Failure, ReadModelRow, RowFormat, TenantKey
from seriatim.core.projection import Projection, Table, frame_projection, projection
from seriatim.store.readmodel.model import ReadModel
from seriatim.store.readmodel.port import ProjectionStep

LOG = LogIdentity("00000000-0000-0000-0000-000000000001", 1)


def keep_state(state: Any, _event: EventRecord) -> Any:
    """Return the state unchanged."""
    return state


class SeatCount(msgspec.Struct):
    """The state of a fold."""

    count: int = 0


seats = projection("seats", key="stream_id", columns={"taken": int})(keep_state)
plan = projection(
    "plan",
    key="stream_id",
    tables=[
        Table("firsts", {"name": str}, {"at": int}, keep="first"),
        Table("lasts", {"name": str}, {"at": int}),
    ],
    state=SeatCount,
)(keep_state)
sums = frame_projection(
    "sums",
    key={"kind": str},
    columns={"total": int, "least": int, "most": float},
    merge={"total": "sum", "least": "min", "most": "max"},
)(lambda given: given)


def seat_rows(
    rows: Mapping[str, int | None], position: int, tenant: str = "default"
) -> dict[TenantKey, ReadModelRow]:
    """Return rows of seats; None deletes a row."""
    return {
        (tenant, key): ReadModelRow(
            tenant, position, None if taken is None else {"stream_id": key, "taken": taken}
        )
        for key, taken in rows.items()
    }


def stored_row(table: Table, position: int, **row: object) -> ReadModelRow:
    """Return a row in its stored form."""
    return ReadModelRow("default", position, RowFormat(table).normalize(row))


def make_step(after: int, until: int, **parts: Any) -> ProjectionStep:
    """Return a step of a cursor."""
    return ProjectionStep(after=after, until=until, last_event_id=f"e{until}", **parts)


def make_failure(position: int, key: str = "1a", reason: str = "ValueError: no") -> Failure:
    """Return a failure."""
    return Failure(
        tenant_id="default",
        key=key,
        position=position,
        event_id=f"e{position}",
        event_type="seat.taken",
        reason=reason,
    )


def begin_and_claim(model: ReadModel, made: Projection = seats, *, shadow: bool = False) -> int:
    """Create a projection, claim it, and return the fencing token."""
    model.create_projection(made, "default", LOG, shadow=shadow)
    token = model.claim(made.name, "me", 60, shadow=shadow)
    assert token is not None
    return token


def rows_of(
    model: ReadModel, made: Projection = seats, table: int = 0, *, shadow: bool = False
) -> list[dict[str, Any]]:
    """Return all rows of a table in the order of its key."""
    with model.snapshot() as moment:
        return [row for _, row, _ in moment.rows(made, made.tables[table], shadow=shadow)]


def short_rows(model: ReadModel, *, shadow: bool = False) -> dict[str, int]:
    """Return the rows of seats as a mapping from key to count."""
    return {row["stream_id"]: row["taken"] for row in rows_of(model, shadow=shadow)}
