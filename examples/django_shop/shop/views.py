"""The views: append orders, read them back, report the health of the read model."""

import json
from typing import Any

from django.http import Http404, HttpRequest, JsonResponse
from django.views import View

from seriatim import NewEvent, NotFound
from shop.log import get_log
from shop.read_models import orders

HEALTHY_LAG = 1_000


class OrderView(View):
    """One order."""

    def put(self, request: HttpRequest, order_id: str) -> JsonResponse:
        """Store an order once, however often the request is sent; return its position."""
        body: dict[str, Any] = json.loads(request.body)
        order = {"customer": str(body["customer"]), "cents": int(body["cents"])}
        placed = NewEvent("order.placed", order, stream=("order", order_id))
        receipt = get_log().append([placed], idempotency_key=f"place-{order_id}")
        return JsonResponse({"position": receipt.last_position})

    def get(self, request: HttpRequest, order_id: str) -> JsonResponse:
        """Return an order; `after` is the position of a write that the caller wants to see."""
        projections = get_log().projections
        projections.wait_for("orders", int(request.GET.get("after", 0)), timeout_s=2)
        row = projections.get_row(orders, order_id)
        if row is None:
            raise Http404(f"there is no order {order_id}")
        return JsonResponse(row)


def report_health(_: HttpRequest) -> JsonResponse:
    """Report the read model, whichever process maintains it; 503 if it has failed or lags."""
    try:
        standing = next(one for one in get_log().projections.status() if one.name == "orders")
    except (StopIteration, NotFound):
        return JsonResponse({"orders": "no process has run it yet"}, status=503)
    healthy = standing.status == "ready" and standing.lag <= HEALTHY_LAG
    body = {"orders": {"status": standing.status, "lag": standing.lag}}
    return JsonResponse(body, status=200 if healthy else 503)
