"""Report that a bound was met: a log line for each bound and tenant now and then, and a count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("seriatim.api")

LOG_EVERY_S = 10.0
_KNOWN_MAX = 1000


class LimitReporter:
    """Count met bounds and log them at most once in a while; any thread may report."""

    def __init__(self) -> None:
        self.count: Callable[[str, str], None] | None = None  # the metric, once there is one
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def report(self, limit: str, tenant_id: str = "") -> None:
        """Report that a request or connection met a bound."""
        if self.count is not None:
            self.count(limit, tenant_id)
        key = limit, tenant_id
        now = time.monotonic()
        logged_at, unlogged = self._logged.get(key, (float("-inf"), 0))
        if now - logged_at < LOG_EVERY_S:
            self._logged[key] = logged_at, unlogged + 1
            return
        if len(self._logged) >= _KNOWN_MAX:
            self._logged = {}
        self._logged[key] = now, 0
        before = f" ({unlogged} more times since the last such line)" if unlogged else ""
        extra = {"limit": limit} | ({"tenant": tenant_id} if tenant_id else {})
        logger.warning("bound met: %s%s", limit, before, extra=extra)
