"""What the service tells of itself: metrics, a span for each request, a line when it fails."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Any

from seriatim.api.http import HttpRequest, HttpResponse
from seriatim.api.service import Service
from seriatim.telemetry import tracing
from seriatim.telemetry.log_metrics import LogMetrics
from seriatim.telemetry.metrics import LABEL_VALUES_MAX, Metrics
from seriatim.telemetry.service_metrics import ServiceMetrics
from seriatim.wire.problems import TOO_MANY_REQUESTS

logger = logging.getLogger("seriatim.api")

UNKNOWN_ROUTE = "other"  # what is no route: whatever was asked for stays out of metrics
GAUGE_CACHE_S = 10.0  # at the lag of every tenant's consumers
_FAULT = 500


class RequestObserver:
    """The telemetry of one process."""

    def __init__(self, service: Service, *, log_requests: bool) -> None:
        self._metrics = Metrics()
        self._log_metrics = LogMetrics(self._metrics)
        self._service_metrics = ServiceMetrics(self._metrics)
        service.bounds.count = self._service_metrics.count_limit_reached
        self._unwatch = self._log_metrics.observe(
            service.log, lambda: service.store.tenants(LABEL_VALUES_MAX), cache_s=GAUGE_CACHE_S
        )
        self._log_requests = log_requests

    def close(self) -> None:
        """Listen no longer."""
        self._unwatch()

    def render_metrics(self, accept: str) -> HttpResponse:
        """Return all metrics as Prometheus reads them."""
        body, content_type = self._metrics.render(accept)
        return HttpResponse(200, body, content_type.encode())

    def track_tail(self) -> AbstractContextManager[None]:
        """Count a tail as open."""
        return self._service_metrics.track_tail()

    def record_response(self, request: HttpRequest, status: int, seconds: float, size: int) -> None:
        """Count a request, and log it if it failed here or all are logged."""
        path = request.route or UNKNOWN_ROUTE
        received = request.content_length()
        self._service_metrics.count_request(
            path, request.method, status, seconds, received=received, sent=size
        )
        if status == TOO_MANY_REQUESTS and request.endpoint:
            self._service_metrics.count_quota_refusal(request.tenant_id)
        if status >= _FAULT or self._log_requests:
            level = logging.WARNING if status >= _FAULT else logging.INFO
            taken_ms = round(seconds * 1000, 3)
            fields: dict[str, Any] = {
                "method": request.method,
                "route": path,
                "status": status,
                "duration_ms": taken_ms,
                "request_id": request.request_id,
            }
            caller = getattr(request, "caller", None)  # not there without a valid token
            if caller is not None:
                tenant_id = request.tenant_id if request.identified else caller.tenant_id
                fields |= {"tenant": tenant_id, "caller": caller.subject}
            said = "%s %s %d %.1f ms"
            logger.log(level, said, request.method, path, status, taken_ms, extra=fields)


def start_request_span(request: HttpRequest) -> AbstractContextManager[Any]:
    """Return a span around a request that goes on with its caller's trace."""
    headers = {
        name: value
        for name in ("traceparent", "tracestate")
        if (value := request.headers.get(name.encode(), b"").decode("latin-1"))
    }
    return tracing.span(
        request.endpoint or request.method,
        kind="server",
        attributes={
            "http.request.method": request.method,
            "seriatim.request_id": request.request_id,
        },
        parent=tracing.extract(headers),
    )
