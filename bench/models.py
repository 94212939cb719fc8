"""The read model that both sides build: the state of every order."""

from typing import Any

from seriatim import EventRecord, projection

ORDER_COLUMNS: dict[str, type] = {
    "customer": str,
    "status": str,
    "region": str,
    "amount_cents": int,
    "events": int,
}


def order_state(state: dict[str, Any] | None, event: EventRecord) -> dict[str, Any]:
    """Fold one event into what is known of its order."""
    said = event.data
    return {
        "customer": said["customer"],
        "status": event.event_type,
        "region": said["region"],
        "amount_cents": (state["amount_cents"] if state else 0) + said["amount_cents"],
        "events": (state["events"] if state else 0) + 1,
    }


ORDERS = projection("orders", key="stream_id", columns=ORDER_COLUMNS)(order_state)
