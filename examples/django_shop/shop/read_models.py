"""What the shop derives from its events: the read model of orders."""

from typing import Any

from seriatim import EventRecord, projection

Row = dict[str, Any]


@projection(
    "orders",
    key="stream_id",
    events=["order.*"],
    columns={"customer": str, "cents": int, "status": str},
)
def orders(row: Row | None, event: EventRecord) -> Row:
    """Fold the events of an order into its row."""
    if row is None:
        placed = event.payload
        return {"customer": placed["customer"], "cents": placed["cents"], "status": "placed"}
    row["status"] = event.event_type.removeprefix("order.")
    return row
