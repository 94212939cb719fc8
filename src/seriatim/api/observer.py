"""Telemetry of the service: metrics, a span for each request, and a log line on failure."""

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

UNKNOWN_ROUTE = "other"  # unknown paths would make the number of labels unbounded
GAUGE_CACHE_S = 10.0  # the lag of all tenants' consumers takes many reads
_SERVER_ERROR = 500


class RequestObserver:
    """Record the telemetry of one process.

    Args:
        service: The service to observe.
        log_requests: Log every request, not only those that fail.
    """

    def __init__(self, service: Service, *, log_requests: bool) -> None:
        self._metrics = Metrics()
        self._log_metrics = LogMetrics(self._metrics)
        self._service_metrics = ServiceMetrics(self._metrics)
        service.bounds.count = self._service_metrics.count_limit_reached
        self._stop_observing = self._log_metrics.observe(
            service.log, lambda: service.store.tenants(LABEL_VALUES_MAX), cache_s=GAUGE_CACHE_S
        )
        self._log_requests = log_requests

    def close(self) -> None:
        """Stop observing the log."""
        self._stop_observing()

    def render_metrics(self, accept: str) -> HttpResponse:
        """Render all metrics in the Prometheus format that `accept` requests."""
        body, content_type = self._metrics.render(accept)
        return HttpResponse(200, body, content_type.encode())

    def track_tail(self) -> AbstractContextManager[None]:
        """Count a tail as open."""
        return self._service_metrics.track_tail()

    def record_response(self, request: HttpRequest, status: int, seconds: float, size: int) -> None:
        """Count a request, and log it if it failed in the service or if all are logged."""
        path = request.route or UNKNOWN_ROUTE
        received = request.content_length()
        self._service_metrics.count_request(
            path, request.method, status, seconds, received=received, sent=size
        )
        if status == TOO_MANY_REQUESTS and request.endpoint:
            self._service_metrics.count_quota_refusal(request.tenant_id)
        if status >= _SERVER_ERROR or self._log_requests:
            level = logging.WARNING if status >= _SERVER_ERROR else logging.INFO
            duration_ms = round(seconds * 1000, 3)
            fields: dict[str, Any] = {
                "method": request.method,
                "route": path,
                "status": status,
                "duration_ms": duration_ms,
                "request_id": request.request_id,
            }
            caller = getattr(request, "caller", None)  # absent without a valid token
            if caller is not None:
                tenant_id = request.tenant_id if request.identified else caller.tenant_id
                fields |= {"tenant": tenant_id, "caller": caller.subject}
            line = "%s %s %d %.1f ms"
            logger.log(level, line, request.method, path, status, duration_ms, extra=fields)


def start_request_span(request: HttpRequest) -> AbstractContextManager[Any]:
    """Start a span for a request, in the trace of its caller."""
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
