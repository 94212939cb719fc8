"""Metrics in Prometheus format, of one process or of several that share a directory."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from seriatim.config.telemetry import metrics_folder
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.telemetry import metric_families
from seriatim.telemetry.metric_families import DURATION_BUCKETS_S, MetricFamily

OTHER_LABEL = "other"
LABEL_VALUES_MAX = 1000


class BoundedLabels:
    """Accept the first label values up to a limit; all later ones become `other`."""

    def __init__(self, limit: int = LABEL_VALUES_MAX) -> None:
        self._limit = limit
        self._known: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def bound(self, name: str) -> str:
        """Return a value if it is accepted, else `other`."""
        return name if self.admit(name) else OTHER_LABEL

    def admit(self, *names: str) -> bool:
        """Return whether a combination of label values is accepted, remembering it if so."""
        # Reading a set is safe without the lock, and this is the common case.
        if names in self._known:
            return True
        with self._lock:
            if len(self._known) >= self._limit:
                return names in self._known
            self._known.add(names)
            return True


_PORTS = 65_536
_INVALID_VERSION = re.compile(r"version=(?!\d{1,4}(\.\d{1,4}){0,3}\s*([;,]|$))", re.ASCII)
_OPTIONS: dict[str, dict[str, Any]] = {
    "counter": {},
    "gauge": {"multiprocess_mode": "livesum"},
    "histogram": {"buckets": DURATION_BUCKETS_S},
}


class GaugeReading(msgspec.Struct, frozen=True):
    """The value of a gauge, read on a scrape."""

    family: MetricFamily
    labels: tuple[str, ...]
    value: float


class CachedLabels:
    """A metric with cached children: looking one up takes the client longer than counting."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._children: dict[tuple[str, ...], Any] = {}

    def labels(self, *values: str) -> Any:
        """Return the metric with these label values; the caller bounds their number."""
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = self._metric.labels(*values)
        return child


class Metrics:
    """The metrics of a process: counters that it updates, and gauges read on each scrape.

    Raises:
        BackendFailure: The Prometheus client is not installed.
    """

    def __init__(self) -> None:
        self._client = _client()
        self._own_registry = self._client.CollectorRegistry()
        self.registry = self._own_registry
        # With several processes, a scrape reads the files of all of them, not the registry of one.
        if folder := metrics_folder():
            self.registry = self._client.CollectorRegistry()
            self.registry.register(_MultiprocessCollector(self._client, folder))

    def create(self, family: MetricFamily) -> Any:
        """Create the counter, gauge or histogram of a metric family.

        Example:
            from seriatim.telemetry.metric_families import MetricFamily

            family = MetricFamily("orders_total", "counter", "Orders by country.", ("country",))
            Metrics().create(family).labels("DE").inc()
        """
        kinds = {
            "counter": self._client.Counter,
            "gauge": self._client.Gauge,
            "histogram": self._client.Histogram,
        }
        metric = kinds[family.kind](
            family.name,
            family.help,
            family.labels,
            registry=self._own_registry,
            **_OPTIONS[family.kind],
        )
        return CachedLabels(metric) if family.labels else metric

    def register_reader(self, read: Callable[[], Iterable[GaugeReading]]) -> Callable[[], None]:
        """Call `read` on every scrape and report its gauges.

        Returns:
            A function that removes the reader.

        Example:
            from seriatim.telemetry.metric_families import LOG_HEAD
            from seriatim.telemetry.metrics import GaugeReading

            remove = Metrics().register_reader(lambda: [GaugeReading(LOG_HEAD, (), log.head())])
        """
        collector = _Collector(self._client, read)
        self.registry.register(collector)
        return lambda: self.registry.unregister(collector)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return all metrics as text, and its content type; this may query a database.

        Args:
            accept: The value of an Accept header, which selects the format.

        Example:
            text, content_type = Metrics().render()
        """
        # The client raises on a malformed version in the header: use the plain format then.
        accepted = "" if _INVALID_VERSION.search(accept) else accept
        encode, content_type = self._client.exposition.choose_encoder(accepted)
        return encode(self.registry), content_type


class MetricsServer:
    """Serve metrics at http://host:port/metrics, for processes without an HTTP service.

    Raises:
        InvalidArgument: The address is malformed or in use.

    Example:
        server = MetricsServer(Metrics(), "127.0.0.1:0")
        print(server.port)
        server.close()
    """

    def __init__(self, metrics: Metrics, address: str) -> None:
        host, port = _parse_address(address)
        try:
            self._server, self._thread = _client().start_http_server(
                port, addr=host, registry=metrics.registry
            )
        except OSError as error:
            msg = f"metrics cannot be served at {address}: {error.strerror}"
            raise InvalidArgument(msg, details={"argument": "metrics"}) from error

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._server.server_address[1]
        return port

    def close(self) -> None:
        """Stop the server.

        Example:
            MetricsServer(Metrics(), "127.0.0.1:0").close()
        """
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _MultiprocessCollector:
    """Merge the metrics of all processes in a directory; gauges only of living processes."""

    def __init__(self, client: ModuleType, folder: Path) -> None:
        self._library = client.multiprocess
        self._folder = folder

    def collect(self) -> Iterable[Any]:
        for file in self._folder.glob("gauge_live*_*.db"):
            process = int(file.stem.rpartition("_")[2])
            if not _is_alive(process):
                self._library.mark_process_dead(process, str(self._folder))
        # The library cannot read a file that another process has created and not written yet.
        files = [str(file) for file in self._folder.glob("*.db") if _get_size(file)]
        merged: Iterable[Any] = self._library.MultiProcessCollector.merge(files)
        return merged


def _get_size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # its process has just died
        return 0


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class _Collector:
    """Convert readings to the metric families of the client."""

    def __init__(self, client: ModuleType, read: Callable[[], Iterable[GaugeReading]]) -> None:
        self._client = client
        self._read = read

    def collect(self) -> Iterator[Any]:
        families: dict[str, Any] = {}
        for reading in self._read():
            family = reading.family
            if family.name not in families:
                families[family.name] = self._client.core.GaugeMetricFamily(
                    family.name, family.help, labels=family.labels
                )
            families[family.name].add_metric(reading.labels, reading.value)
        yield from families.values()


def _parse_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) >= _PORTS:
        msg = f"the address of metrics must be host:port, not {address!r:.80}"
        raise InvalidArgument(msg, details={"argument": "metrics"})
    return host or "127.0.0.1", int(port)


def _client() -> ModuleType:
    try:
        import prometheus_client
        import prometheus_client.core
        import prometheus_client.multiprocess
    except ModuleNotFoundError as error:
        msg = "metrics need the Prometheus client: pip install 'seriatim[metrics]'"
        raise BackendFailure(msg, retryable=False) from error
    return prometheus_client


_STATUSES = ("claimed", "expired", "failed", "blocked", "dead", "unknown")


class JobMetrics:
    """The metrics of projections, handlers and other jobs in one process.

    Example:
        metrics = Metrics()
        with log.projections.follow(metrics=JobMetrics(metrics)):
            text, content_type = metrics.render()
    """

    def __init__(self, metrics: Metrics) -> None:
        self._position = metrics.create(metric_families.JOB_POSITION)
        self._lag = metrics.create(metric_families.JOB_LAG)
        self._pace = metrics.create(metric_families.JOB_PACE)
        self._outcomes = metrics.create(metric_families.JOB_EVENTS)
        self._unfinished = metrics.create(metric_families.REGISTRY_EVENTS)
        self._outage = metrics.create(metric_families.REGISTRY_OUTAGE)

    def set_progress(self, job: str, position: int, lag: int, pace: float) -> None:
        """Set the position, lag and events per second of a job.

        Example:
            JobMetrics(Metrics()).set_progress("orders", position=8, lag=2, pace=1.5)
        """
        self._position.labels(job).set(position)
        self._lag.labels(job).set(lag)
        self._pace.labels(job).set(pace)

    def set_outcomes(self, job: str, counts: Mapping[str, int]) -> None:
        """Set the number of events by outcome.

        Example:
            JobMetrics(Metrics()).set_outcomes("receipts", {"done": 3})
        """
        for outcome, count in counts.items():
            self._outcomes.labels(job, outcome).set(count)

    def set_registry(self, handler: str, counts: Mapping[str, int], *, unavailable: bool) -> None:
        """Set the unfinished events of a handler by status, or that the registry is unavailable.

        Example:
            JobMetrics(Metrics()).set_registry("receipts", {"dead": 1}, unavailable=False)
        """
        self._outage.labels(handler).set(int(unavailable))
        if unavailable:
            return
        for status in _STATUSES:
            self._unfinished.labels(handler, status).set(counts.get(status, 0))


_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_ROUTES_MAX = 200


class ServiceMetrics:
    """The metrics of one service process; `route` is the path of a route, not of a request."""

    def __init__(self, metrics: Metrics, *, names_max: int = LABEL_VALUES_MAX) -> None:
        self._requests = metrics.create(metric_families.HTTP_REQUESTS)
        self._seconds = metrics.create(metric_families.HTTP_SECONDS)
        self._tails = metrics.create(metric_families.HTTP_TAILS)
        self._refusals = metrics.create(metric_families.HTTP_REFUSALS)
        self._bounds = metrics.create(metric_families.HTTP_BOUNDS)
        self._received = metrics.create(metric_families.HTTP_RECEIVED)
        self._sent = metrics.create(metric_families.HTTP_SENT)
        self._routes = BoundedLabels(_ROUTES_MAX)
        self._tenants = BoundedLabels(names_max)
        self._limits = BoundedLabels(names_max)

    def count_request(
        self,
        route: str,
        method: str,
        status: int,
        seconds: float,
        *,
        received: int = 0,
        sent: int = 0,
    ) -> None:
        """Count a completed request."""
        route_label = self._routes.bound(route)
        method_label = method if method in _METHODS else OTHER_LABEL
        self._requests.labels(route_label, method_label, f"{status // 100}xx").inc()
        self._seconds.labels(route_label).observe(seconds)
        self._received.labels(route_label).inc(received)
        self._sent.labels(route_label).inc(sent)

    def count_quota_refusal(self, tenant: str) -> None:
        """Count a request refused because of a quota."""
        self._refusals.labels(self._tenants.bound(tenant)).inc()

    def count_limit_reached(self, limit: str, tenant: str) -> None:
        """Count a request, tail or connection that reached a limit."""
        self._bounds.labels(self._limits.bound(limit), self._tenants.bound(tenant)).inc()

    @contextmanager
    def track_tail(self) -> Iterator[None]:
        """Count a tail as open while a block runs."""
        self._tails.inc()
        try:
            yield
        finally:
            self._tails.dec()
