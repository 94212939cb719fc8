"""What the service tells of itself: metrics, a span for each request, a line when it fails."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Any

from seriatim.api.http import Request, Response
from seriatim.api.service import Service
from seriatim.telemetry import tracing
from seriatim.telemetry.labels import NAMES_MAX
from seriatim.telemetry.log_metrics import LogMetrics
from seriatim.telemetry.metrics import Metrics
from seriatim.telemetry.service_metrics import ServiceMetrics
from seriatim.wire.problems import BUSY

logger = logging.getLogger("seriatim.api")

UNKNOWN = "other"  # what is no route: whatever was asked for stays out of metrics
LOOK_EVERY_S = 10.0  # at the lag of every tenant's consumers
_FAULT = 500


class Observer:
    """The telemetry of one process."""

    def __init__(self, service: Service, *, log_requests: bool) -> None:
        self._metrics = Metrics()
        self._log_metrics = LogMetrics(self._metrics)
        self._service_metrics = ServiceMetrics(self._metrics)
        service.bounds.count = self._service_metrics.bound_met
        self._unwatch = self._log_metrics.watch(
            service.log, lambda: service.store.tenants(NAMES_MAX), keep_s=LOOK_EVERY_S
        )
        self._log_requests = log_requests

    def close(self) -> None:
        """Listen no longer."""
        self._unwatch()

    def exposition(self, accept: str) -> Response:
        """Return all metrics as Prometheus reads them."""
        body, content_type = self._metrics.exposition(accept)
        return Response(200, body, content_type.encode())

    def tail(self) -> AbstractContextManager[None]:
        """Count a tail as open."""
        return self._service_metrics.tail()

    def answered(self, request: Request, status: int, seconds: float, size: int) -> None:
        """Count a request, and log it if it failed here or all are logged."""
        path = request.route or UNKNOWN
        received = request.told_length()
        self._service_metrics.request(
            path, request.method, status, seconds, received=received, sent=size
        )
        if status == BUSY and request.endpoint:
            self._service_metrics.refused(request.tenant_id)
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
                tenant_id = request.tenant_id if request.known else caller.tenant_id
                fields |= {"tenant": tenant_id, "caller": caller.subject}
            said = "%s %s %d %.1f ms"
            logger.log(level, said, request.method, path, status, taken_ms, extra=fields)


def spanned(request: Request) -> AbstractContextManager[Any]:
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
