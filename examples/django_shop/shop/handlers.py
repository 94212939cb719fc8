"""The effects of the shop: each order is confirmed once."""

from typing import Any

from seriatim import EventRecord, NewEvent, handler
from shop.log import get_log


@handler("confirm_orders", events=["order.placed"], effect="keyed")
def confirm_orders(event: EventRecord, context: Any) -> None:
    """Append the confirmation; the key keeps a repeated effect from storing it twice."""
    confirmed = NewEvent("order.confirmed", stream=event.stream)
    get_log().append([confirmed], idempotency_key=context.key)
