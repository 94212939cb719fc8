"""Metrics in Prometheus format, of jobs that run for long; labels are names, never ids."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from seriatim.core.errors import BackendFailure, InvalidArgument

_PORTS = 65_536


class Metrics:
    """The metrics of one process, shown at http://host:port/metrics."""

    def __init__(self, address: str) -> None:
        client = _client()
        host, port = _place(address)
        self._registry = client.CollectorRegistry()
        names = {"registry": self._registry}
        self._position = client.Gauge(
            "seriatim_job_position", "How far a job has come.", ["job"], **names
        )
        self._lag = client.Gauge(
            "seriatim_job_lag_events", "How many events are still to come.", ["job"], **names
        )
        self._pace = client.Gauge(
            "seriatim_job_events_per_second", "Its pace since it began.", ["job"], **names
        )
        self._done = client.Gauge(
            "seriatim_job_events", "What became of events.", ["job", "outcome"], **names
        )
        self._open = client.Gauge(
            "seriatim_registry_events", "What is open.", ["handler", "status"], **names
        )
        self._outage = client.Gauge(
            "seriatim_registry_outage", "1 while the registry is away.", ["handler"], **names
        )
        try:
            self._server, self._thread = client.start_http_server(
                port, addr=host, registry=self._registry
            )
        except OSError as error:
            msg = f"metrics cannot be shown at {address}: {error.strerror}"
            raise InvalidArgument(msg, details={"argument": "metrics"}) from error

    def progress(self, job: str, position: int, lag: int, pace: float) -> None:
        """Tell how far a job is."""
        self._position.labels(job).set(position)
        self._lag.labels(job).set(lag)
        self._pace.labels(job).set(pace)

    def outcomes(self, job: str, counts: Mapping[str, int]) -> None:
        """Tell what became of events."""
        for outcome, count in counts.items():
            self._done.labels(job, outcome).set(count)

    def registry(self, handler: str, counts: Mapping[str, int], *, away: bool) -> None:
        """Tell what is open in the registry, or that it cannot be asked."""
        self._outage.labels(handler).set(int(away))
        if away:
            return
        for status in ("claimed", "expired", "failed", "blocked", "dead", "unknown"):
            self._open.labels(handler, status).set(counts.get(status, 0))

    @property
    def port(self) -> int:
        """The port that was taken."""
        found: int = self._server.server_address[1]
        return found

    def close(self) -> None:
        """Show them no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) >= _PORTS:
        msg = f"metrics are shown at host:port, not at {address!r:.80}"
        raise InvalidArgument(msg, details={"argument": "metrics"})
    return host or "127.0.0.1", int(port)


def _client() -> ModuleType:
    try:
        import prometheus_client  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        msg = "metrics need their client: pip install 'seriatim[metrics]'"
        raise BackendFailure(msg, retryable=False) from error
    found: Any = prometheus_client
    return found  # type: ignore[no-any-return]
