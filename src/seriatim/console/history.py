"""The last hour of the log in this process: head, appends, and the lag of consumers."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec

from seriatim.access.rights import Caller
from seriatim.api.app import App
from seriatim.api.http import AsgiMessage, HttpRequest, HttpResponse
from seriatim.core.errors import BackendFailure, SeriatimError
from seriatim.core.event import DEFAULT_TENANT

logger = logging.getLogger("seriatim.console")

INTERVAL_S = 5.0
HISTORY_S = 3600.0
STALLED_S = 60.0
SAMPLES_MAX = int(HISTORY_S / INTERVAL_S)
_TENANTS_MAX = 16
_CONSUMERS_MAX = 200
_PAGE = 50  # consumers of one kind and tenant
_STOP_S = 5.0
_DURATIONS_MAX = 1000  # of the appends between two samples
_REGISTRY_EVERY = 6  # samples: counting the entries of handlers takes longer than reading a cursor
WAITING_STATUSES = ("claimed", "expired", "failed", "blocked")
_SAMPLER = Caller(subject="console", rights=frozenset({"read", "operate"}))

ConsumerKind = Literal["projection", "subscription", "handler"]
ConsumerKey = tuple[str, ConsumerKind, str]  # tenant, kind and name


class LogSample(msgspec.Struct, frozen=True, gc=False):
    """The log at one time, and the appends of this process since the sample before it.

    Attributes:
        at: The time in seconds since 1970.
        head: The head of the log.
        appends: The number of appends.
        p50_s: The median of their durations.
        p99_s: The 99th percentile of their durations.
    """

    at: float
    head: int
    appends: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0


class ConsumerSample(msgspec.Struct, frozen=True, gc=False):
    """A consumer at one time: its cursor, and the number of its pending events."""

    at: float
    position: int
    lag: int


class AppendTimer:
    """Collect the durations of appends between two samples; any thread may record one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._durations: list[float] = []
        self._count = 0

    def record(self, seconds: float) -> None:
        """Record an append; beyond `_DURATIONS_MAX` only the count grows."""
        with self._lock:
            self._count += 1
            if len(self._durations) < _DURATIONS_MAX:
                self._durations.append(seconds)

    def take(self) -> tuple[int, float, float]:
        """Return the number of appends since the last call, and median and 99th percentile."""
        with self._lock:
            durations, count = self._durations, self._count
            self._durations, self._count = [], 0
        if not durations:
            return count, 0.0, 0.0
        durations.sort()  # outside the lock, which appends take
        last = len(durations) - 1
        return count, durations[last // 2], durations[round(last * 0.99)]


class History:
    """Samples of the last hour, in memory.

    It keeps consumers of the tenants whose pages were viewed last, at most `_TENANTS_MAX`.
    """

    def __init__(self) -> None:
        self.log: deque[LogSample] = deque(maxlen=SAMPLES_MAX)
        self._consumers: dict[ConsumerKey, deque[ConsumerSample]] = {}
        self._tenants: dict[str, None] = {DEFAULT_TENANT: None}  # least recently viewed first

    @property
    def tenants(self) -> tuple[str, ...]:
        """The tenants whose consumers are sampled."""
        return tuple(self._tenants)

    def watch(self, tenant_id: str) -> None:
        """Sample the consumers of a tenant; beyond a limit, drop the least recently viewed one."""
        self._tenants.pop(tenant_id, None)
        self._tenants[tenant_id] = None
        while len(self._tenants) > _TENANTS_MAX:
            self._tenants.pop(next(iter(self._tenants)))

    def add(self, key: ConsumerKey, sample: ConsumerSample) -> None:
        """Add a sample of a consumer; consumers beyond `_CONSUMERS_MAX` are not recorded."""
        samples = self._consumers.get(key)
        if samples is None:
            if len(self._consumers) >= _CONSUMERS_MAX:
                return
            samples = self._consumers[key] = deque(maxlen=SAMPLES_MAX)
        samples.append(sample)

    def expire(self, now: float) -> None:
        """Remove consumers without a sample in the last hour."""
        for key, samples in list(self._consumers.items()):
            if samples[-1].at < now - HISTORY_S:
                del self._consumers[key]

    def consumer(self, tenant_id: str, kind: ConsumerKind, name: str) -> list[ConsumerSample]:
        """Return the samples of a consumer, oldest first; none if it is not recorded."""
        return list(self._consumers.get((tenant_id, kind, name), ()))

    def append_rates(self) -> list[tuple[float, float]]:
        """Return the events that the log grew by per second, by time."""
        samples = list(self.log)
        return [
            (later.at, max(0, later.head - earlier.head) / (later.at - earlier.at))
            for earlier, later in pairwise(samples)
            if later.at > earlier.at
        ]


def is_stalled(samples: list[ConsumerSample], seconds: float = STALLED_S) -> bool:
    """Return whether a cursor has not moved for `seconds` while events were pending."""
    if not samples:
        return False
    last = samples[-1]
    for sample in reversed(samples):
        if sample.position != last.position or sample.lag <= 0:
            return False
        if last.at - sample.at >= seconds:
            return True
    return False


def describe_trend(samples: list[ConsumerSample], seconds: float = 300.0) -> str:
    """Return whether the lag of a consumer is growing, falling or steady, in a word."""
    recent = [sample for sample in samples[-SAMPLES_MAX:] if sample.at >= samples[-1].at - seconds]
    if not recent[1:]:
        return ""  # a trend needs two samples
    change = recent[-1].lag - recent[0].lag
    if abs(change) <= max(1, recent[0].lag // 20):
        return "steady"
    return "growing" if change > 0 else "falling"


class Sampler:
    """Record samples at an interval, through the routes of the API.

    Args:
        app: The application.
        history: Receives the samples.
        interval_s: The seconds between two samples.
    """

    def __init__(self, app: App, history: History, interval_s: float = INTERVAL_S) -> None:
        self._app = app
        self._history = history
        self._interval_s = interval_s
        self._timer = AppendTimer()
        self._sample_count = 0
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        """Start sampling on the running event loop."""
        self._unsubscribe = self._app.service.log.telemetry.subscribe(self._observe)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Finish the current read, and stop sampling."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._task is not None:
            # Cancelling the task would leave its thread to open connections of a closed log.
            self._stopping.set()
            await asyncio.wait([self._task], timeout=_STOP_S)
            self._task.cancel()

    def _observe(self, event: Any) -> None:
        if event.name == "store.append.stop":
            self._timer.record(event.measurements["duration_s"])

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self.take()
            except SeriatimError:
                pass  # the database is unreachable: the gap is visible in the charts
            except Exception:
                logger.exception("a sample for the console's history failed")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._interval_s)

    async def take(self) -> None:
        """Take one sample of the log, and of the consumers of watched tenants."""
        now = time.time()
        info = await self._get(DEFAULT_TENANT, "/v1/log")
        self._history.log.append(LogSample(now, info["head"], *self._timer.take()))
        for tenant_id in self._history.tenants:
            for key, position, lag in await self._read_consumers(tenant_id):
                self._history.add(key, ConsumerSample(now, position, lag))
        self._history.expire(now)
        self._sample_count += 1

    async def _read_consumers(self, tenant_id: str) -> list[tuple[ConsumerKey, int, int]]:
        readings: list[tuple[ConsumerKey, int, int]] = []
        with suppress(SeriatimError):  # there is no read model
            listing = (await self._get(tenant_id, "/v1/projections"))["projections"]
            readings += [
                ((tenant_id, "projection", status["name"]), status["position"], status["lag"])
                for status in listing[:_PAGE]
            ]
        with suppress(SeriatimError):
            listing = await self._get(tenant_id, "/v1/subscriptions", limit=_PAGE)
            for status in listing["subscriptions"]:
                key: ConsumerKey = (tenant_id, "subscription", status["name"])
                readings.append((key, status["position"], status["lag_events"]))
        if self._sample_count % _REGISTRY_EVERY == 0:
            with suppress(SeriatimError):  # there is no registry
                counts = (await self._get(tenant_id, "/v1/registry"))["counts"]
                for name, (position, waiting) in list(count_waiting(counts).items())[:_PAGE]:
                    readings.append(((tenant_id, "handler", name), position, waiting))
        return readings

    async def _get(self, tenant_id: str, path: str, **params: int) -> Any:
        if self._stopping.is_set():
            raise BackendFailure("the service is stopping")
        response = await self._app.call(_make_request(tenant_id, path, **params))
        assert isinstance(response, HttpResponse)  # noqa: S101 - no route above streams
        return msgspec.json.decode(response.body)


def count_waiting(counts: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Return the first position and the number of the pending events of each handler.

    Dead letters and events with an unknown outcome are left out: only an operator can finish them.
    """
    waiting: dict[str, tuple[int, int]] = {}
    for entry in counts:
        if entry["status"] in WAITING_STATUSES:
            position, count = waiting.get(entry["handler"], (entry["first_position"], 0))
            first = min(position, entry["first_position"])
            waiting[entry["handler"]] = first, count + entry["count"]
    return waiting


def _make_request(tenant_id: str, path: str, **params: int) -> HttpRequest:
    """Return a request of the sampler, which has the rights to read and operate for all tenants."""

    async def receive() -> AsgiMessage:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "method": "GET",
        "path": path,
        "query_string": urlencode(params).encode(),
        "headers": [],
    }
    request = HttpRequest(scope, receive)
    request.caller, request.tenant_id, request.identified = _SAMPLER, tenant_id, True
    return request
