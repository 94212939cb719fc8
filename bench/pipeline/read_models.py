"""The read model that all sides build: the state of every order."""

from typing import Any

from seriatim import EventRecord, projection

ORDER_COLUMNS: dict[str, type] = {
    "customer": str,
    "status": str,
    "region": str,
    "amount_cents": int,
    "events": int,
}


def fold_order(state: dict[str, Any] | None, event: EventRecord) -> dict[str, Any]:
    """Return the state of an order after one more event."""
    payload = event.payload
    return {
        "customer": payload["customer"],
        "status": event.event_type,
        "region": payload["region"],
        "amount_cents": (state["amount_cents"] if state else 0) + payload["amount_cents"],
        "events": (state["events"] if state else 0) + 1,
    }


ORDERS = projection("orders", key="stream_id", columns=ORDER_COLUMNS)(fold_order)
