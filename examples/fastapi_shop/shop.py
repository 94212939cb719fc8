"""What the shop derives from its events: the read model of orders, and their confirmation."""

from typing import Any

from seriatim import EventRecord, Handler, Log, NewEvent, handler, projection

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


def declare_confirmation(log: Log) -> Handler:
    """Declare the handler that confirms each order once, by an event of its own."""

    @handler("confirm_orders", events=["order.placed"], effect="keyed")
    async def confirm(event: EventRecord, context: Any) -> None:
        """Append the confirmation; the key keeps a repeated effect from storing it twice."""
        confirmed = NewEvent("order.confirmed", stream=event.stream)
        await log.aio.append([confirmed], idempotency_key=context.key)

    return confirm
