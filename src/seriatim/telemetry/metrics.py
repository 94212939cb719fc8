"""Metrics in Prometheus format: of one process, or of several that share a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from seriatim.config.telemetry import metrics_folder
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.telemetry.families import SECONDS, Family

_PORTS = 65_536
_NO_VERSION = re.compile(r"version=(?!\d{1,4}(\.\d{1,4}){0,3}\s*([;,]|$))", re.ASCII)
_MORE: dict[str, dict[str, Any]] = {
    "counter": {},
    "gauge": {"multiprocess_mode": "livesum"},
    "histogram": {"buckets": SECONDS},
}


class Reading(msgspec.Struct, frozen=True):
    """A gauge as it stands when somebody looks."""

    family: Family
    labels: tuple[str, ...]
    value: float


class Labelled:
    """A metric whose labels were looked up once: the client takes longer for that than to count."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._known: dict[tuple[str, ...], Any] = {}

    def labels(self, *values: str) -> Any:
        """Return the metric with these labels; who calls keeps their number bounded."""
        found = self._known.get(values)
        if found is None:
            found = self._known[values] = self._metric.labels(*values)
        return found


class Metrics:
    """What is told is kept here, what is asked when somebody looks is read by `reads`."""

    def __init__(self) -> None:
        self._client = _client()
        self._own = self._client.CollectorRegistry()
        self.shown = self._own
        if folder := metrics_folder():
            self.shown = self._client.CollectorRegistry()
            self.shown.register(_Shared(self._client, folder))

    def make(self, family: Family) -> Any:
        """Return the client's counter, gauge or histogram of a family."""
        kinds = {
            "counter": self._client.Counter,
            "gauge": self._client.Gauge,
            "histogram": self._client.Histogram,
        }
        made = kinds[family.kind](
            family.name, family.says, family.labels, registry=self._own, **_MORE[family.kind]
        )
        return Labelled(made) if family.labels else made

    def reads(self, read: Callable[[], Iterable[Reading]]) -> Callable[[], None]:
        """Ask for gauges each time that somebody looks; returns its undoing."""
        collector = _Collector(self._client, read)
        self.shown.register(collector)
        return lambda: self.shown.unregister(collector)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Return everything as text, and its content type; it may have to ask a database."""
        # The client compares versions and fails on one that is none: then it is the plain format.
        known = "" if _NO_VERSION.search(accept) else accept
        encode, content_type = self._client.exposition.choose_encoder(known)
        return encode(self.shown), content_type


class Shown:
    """Metrics at http://host:port/metrics, for a process that serves nothing else."""

    def __init__(self, metrics: Metrics, address: str) -> None:
        host, port = _place(address)
        try:
            self._server, self._thread = _client().start_http_server(
                port, addr=host, registry=metrics.shown
            )
        except OSError as error:
            msg = f"metrics cannot be shown at {address}: {error.strerror}"
            raise InvalidArgument(msg, details={"argument": "metrics"}) from error

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


class _Shared:
    """What all processes of a folder have counted; of a gauge, what those that live say."""

    def __init__(self, client: ModuleType, folder: Path) -> None:
        self._library = client.multiprocess
        self._folder = folder

    def collect(self) -> Iterable[Any]:
        for file in self._folder.glob("gauge_live*_*.db"):
            process = int(file.stem.rpartition("_")[2])
            if not _lives(process):
                self._library.mark_process_dead(process, str(self._folder))
        # The library cannot read a file that another process has made and not begun to fill.
        files = [str(file) for file in self._folder.glob("*.db") if _size(file)]
        found: Iterable[Any] = self._library.MultiProcessCollector.merge(files)
        return found


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # of a process that has just died
        return 0


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class _Collector:
    """Readings in the shape that the client wants them in."""

    def __init__(self, client: ModuleType, read: Callable[[], Iterable[Reading]]) -> None:
        self._client = client
        self._read = read

    def collect(self) -> Iterator[Any]:
        made: dict[str, Any] = {}
        for one in self._read():
            family = one.family
            if family.name not in made:
                made[family.name] = self._client.core.GaugeMetricFamily(
                    family.name, family.says, labels=family.labels
                )
            made[family.name].add_metric(one.labels, one.value)
        yield from made.values()


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) >= _PORTS:
        msg = f"metrics are shown at host:port, not at {address!r:.80}"
        raise InvalidArgument(msg, details={"argument": "metrics"})
    return host or "127.0.0.1", int(port)


def _client() -> ModuleType:
    try:
        import prometheus_client  # noqa: PLC0415 - an extra
        import prometheus_client.core  # noqa: PLC0415 - the same
        import prometheus_client.multiprocess  # noqa: PLC0415 - the same
    except ModuleNotFoundError as error:
        msg = "metrics need their client: pip install 'seriatim[metrics]'"
        raise BackendFailure(msg, retryable=False) from error
    found: Any = prometheus_client
    return found  # type: ignore[no-any-return]
