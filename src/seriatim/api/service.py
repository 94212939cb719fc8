"""The state of one process that all endpoints share: log, access, bounds and settings."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from typing import Generic, Literal, TypeVar, cast

import msgspec

from seriatim.access.quotas import Quota, QuotaMeter
from seriatim.access.rights import ANONYMOUS, Caller
from seriatim.access.store import AccessStore
from seriatim.access.tokens import invalid_token_error
from seriatim.api.access_control import TOKEN_CACHE_S, Authenticator
from seriatim.api.http import HttpRequest
from seriatim.api.hub import Hub
from seriatim.api.job_runner import JobRunner
from seriatim.api.memory_budget import MemoryBudget
from seriatim.api.refusals import RefusedAppends
from seriatim.api.request_queue import RequestQueue
from seriatim.api.tail_buffer import TailBuffer
from seriatim.api.tenant_limiter import TenantLimiter
from seriatim.api.thread_pools import ThreadPools
from seriatim.core.errors import BackendFailure, Forbidden, SeriatimError
from seriatim.core.ids import compose_key
from seriatim.core.limits import KIB, MIB
from seriatim.delivery.registry import Registry
from seriatim.factory import Log
from seriatim.log.async_log import BaseAsyncLog
from seriatim.store.port import Finding, ServiceStore
from seriatim.wire.messages import StorageResponse
from seriatim.wire.problems import Problem, problem_from_error

logger = logging.getLogger("seriatim.api")
T = TypeVar("T")

VERSION = version("seriatim")
OPAQUE_ID_PREFIX = "opaque:"
SMALL_BODY_BYTES = 4 * MIB  # of a request other than an append

LOG_EVERY_S = 10.0
_LOGGED_MAX = 1000
_VIEWS_MAX = 10_000
SHIPPED_PROJECTIONS = ("activity", "aggregate_states", "decision_graph")
_TOKEN_CHECK_S = 1.0  # between two checks for tokens that ended while a tail is open
_CACHE_S = 30.0  # of checks and reports that many pages display
_CLOCK_SLACK_S = 60.0  # the clocks of access store and service may differ


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(headers: Mapping[bytes, bytes]) -> str:
    """Return the host that a request names, without the port."""
    name = headers.get(b"host", b"").decode("latin-1")
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the service: bounds, quotas, access and logging.

    Example:
        from seriatim.server import ServiceSettings

        settings = ServiceSettings(request_timeout_s=10, grace_s=15)
    """

    open_on_loopback: bool = False  # no token is required until the first one is created
    request_bytes: int = 17 * MIB
    request_timeout_s: float = 30.0
    body_timeout_s: float = 30.0
    wait_max_s: float = 60.0
    tail_buffer: int = 1000
    tenant_memory_bytes: int = 128 * MIB  # of request bodies and unsent responses
    unauthenticated_connections: int = 2048
    unauthenticated_bytes: int = 32 * MIB  # of heads and bodies without a valid token
    grace_s: float = 30.0  # from SIGTERM to the end, even if requests are in progress
    own_process: bool = False  # whether the process may be killed after the grace period
    tenant_tails: int = 5000  # half of the tails of a process
    tenant_in_flight: int = 64  # appends while no other tenant is active
    tenant_in_flight_beside: int = 4  # appends while others are active
    tenant_waiting: int = 1024
    tenant_reads: int = 2  # reads while no other tenant is active: its memory holds two responses
    tenant_reads_beside: int = 2
    tenant_reads_waiting: int = 16_384  # more than the number of tails
    tenant_cursors: int = 10_000  # of each purpose
    tenant_leases: int = 10_000
    tenant_answers: int = 100_000  # stored for duplicates of commands that append nothing
    answer_bytes: int = 64 * KIB  # a larger response is not stored: a duplicate runs again
    cursor_query_bytes: int = 256 * KIB
    threads: int = 32
    events_per_s: float = 0.0
    bytes_per_s: float = 0.0
    processes: int = 1
    cors_origins: tuple[str, ...] = ()
    purge_every_s: float = 3600.0
    command_hours: float = 24.0
    log_requests: bool = False
    log_format: Literal["text", "json"] | None = None  # None: the caller configures logging
    projections: tuple[str, ...] = SHIPPED_PROJECTIONS  # that jobs may verify and rebuild
    job_timeout_s: float = 6 * 3600.0
    otel: bool | None = False  # None: if the environment names an OTLP endpoint


class LimitReporter:
    """Count reached limits, and log each at most once per `LOG_EVERY_S` and tenant.

    Any thread may report.
    """

    def __init__(self) -> None:
        self.count: Callable[[str, str], None] | None = None  # the metric, set by the observer
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def report(self, limit: str, tenant_id: str = "") -> None:
        """Report that a request or a connection has reached a limit."""
        if self.count is not None:
            self.count(limit, tenant_id)
        key = limit, tenant_id
        now = time.monotonic()
        # Without a lock: two threads at once lose at most a count in a log line.
        logged_at, unlogged = self._logged.get(key, (float("-inf"), 0))
        if now - logged_at < LOG_EVERY_S:
            self._logged[key] = logged_at, unlogged + 1
            return
        if len(self._logged) >= _LOGGED_MAX:
            self._logged = {}
        self._logged[key] = now, 0
        suffix = f" ({unlogged} more times since the last such line)" if unlogged else ""
        extra = {"limit": limit} | ({"tenant": tenant_id} if tenant_id else {})
        logger.warning("limit reached: %s%s", limit, suffix, extra=extra)


class CachedCall(Generic[T]):
    """Call a function that blocks, at most once per `_CACHE_S`; concurrent callers wait for it."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._cached: tuple[float, T] | None = None

    def __call__(self) -> T:
        """Return the result of the last call, or of a new one if that is too old."""
        with self._lock:
            now = time.monotonic()
            if self._cached is None or now - self._cached[0] >= _CACHE_S:
                self._cached = now, self._read()
            return self._cached[1]


class Service:
    """One process of the service.

    Args:
        log: The log.
        access: The store of tokens, quotas and stored responses.
        serving: The settings.
        registry: Opens the registry next to the log.
        url: The URL of the log, for the processes of jobs.
    """

    def __init__(
        self,
        log: Log,
        access: AccessStore,
        serving: ServiceSettings,
        registry: Callable[[], Registry],
        url: str = "memory:",
    ) -> None:
        self.log = log
        self.limits = log.settings.limits
        self.access = access
        self.settings = serving
        self.registry = registry
        runnable = {path.rpartition(":")[2]: path for path in serving.projections}
        self.jobs = JobRunner(access, url, runnable, serving.job_timeout_s)
        self.queue = RequestQueue()
        self.append_limiter = TenantLimiter(
            serving.tenant_in_flight, serving.tenant_in_flight_beside, serving.tenant_waiting
        )
        read_limiter = TenantLimiter(
            serving.tenant_reads,
            serving.tenant_reads_beside,
            serving.tenant_reads_waiting,
            "reads",
        )
        self._threads = ThreadPools(
            serving.threads, read_limiter, serving.request_timeout_s, self.queue
        )
        self.run, self.run_access = self._threads.run, self._threads.run_access
        self.run_for_tenant, self.run_sized = self._threads.run_for_tenant, self._threads.run_sized
        self.compute_for = self._threads.compute_for
        default_quota = Quota(
            tenant_id="*", events_per_s=serving.events_per_s, bytes_per_s=serving.bytes_per_s
        )
        self.meter = QuotaMeter(default_quota, processes=serving.processes)
        self.memory = MemoryBudget(serving.tenant_memory_bytes)
        self.bounds = LimitReporter()
        self.refusals = RefusedAppends(log.appender.guard)
        self.hub = Hub(log, self.run, self.memory, self.bounds.report, buffer=serving.tail_buffer)
        self._authenticator = Authenticator(access, self.run_access)
        self._tokens_optional = serving.open_on_loopback
        self._views: dict[str, tuple[Log, BaseAsyncLog]] = {}
        self.diagnose = CachedCall(self._diagnose)
        self.inspect_storage = CachedCall(self._inspect_storage)
        self._secret = access.secret("tips")  # the stored name must not change
        self.session_key = access.secret("sessions")  # signs the sessions of the console
        self._tails_by_token: dict[str, set[TailBuffer]] = {}  # open tails by token id
        self._tasks: list[asyncio.Task[None]] = []
        self.on_stop: Callable[[], None] | None = None
        self.read_storage: Callable[[], StorageResponse] | None = None
        self.data_directory = ""  # of the log's files, removed from error messages

    # -- start and stop

    async def start(self) -> None:
        """Start the hub and the tasks that refresh quotas and tokens and purge old commands."""
        self.hub.start()
        await self._refresh()
        self._tasks = [
            asyncio.create_task(run())
            for run in (self._refresh_periodically, self._end_tails_periodically)
        ]

    async def stop(self) -> None:
        """Finish accepted requests, then close everything."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self.hub.stop()
        await asyncio.to_thread(self.jobs.stop)
        with suppress(SeriatimError):
            await self._authenticator.write_uses(all_tokens=True)
        await asyncio.to_thread(self.log.close)  # wakes the hub's watcher, so that it can end
        await asyncio.to_thread(self.hub.join)
        self._threads.stop()
        self.access.close()
        if self.on_stop is not None:
            self.on_stop()

    async def _refresh_periodically(self) -> None:
        purged = time.monotonic()
        while True:
            await asyncio.sleep(TOKEN_CACHE_S)
            with suppress(SeriatimError):  # the previous values apply until the next attempt
                await self._refresh()
            with suppress(SeriatimError):
                await self._authenticator.write_uses()
            if time.monotonic() - purged >= self.settings.purge_every_s:
                purged = time.monotonic()
                with suppress(SeriatimError):
                    await self.run(self.purge, self.settings.command_hours)

    async def _refresh(self) -> None:
        self.meter.set_quotas(await self.run_access(self.access.quotas))
        if self._tokens_optional:
            self._tokens_optional = not await self.run_access(self.access.has_tokens)
            if not self._tokens_optional:
                self._end_tails_of([""])  # tails without a token

    async def _end_tails_periodically(self) -> None:
        """End tails whose tokens were revoked or have expired, whether or not events arrive."""
        checked = time.monotonic()
        while True:
            await asyncio.sleep(_TOKEN_CHECK_S)
            began = time.monotonic()
            if self._tails_by_token:
                try:
                    since_s = began - checked + _CLOCK_SLACK_S
                    self._end_tails_of(
                        await self.run_access(self.access.find_ended_tokens, since_s)
                    )
                except SeriatimError:
                    continue  # the next check covers this period too
            checked = began

    def _end_tails_of(self, token_ids: list[str]) -> None:
        for token_id in token_ids:
            for tail in self._tails_by_token.get(token_id, ()):
                tail.mark_lagging(invalid_token_error())

    def track_tail(self, caller: Caller, tail: TailBuffer) -> None:
        """Register an open tail under the token of its caller."""
        self._tails_by_token.setdefault(caller.token_id, set()).add(tail)

    def untrack_tail(self, caller: Caller, tail: TailBuffer) -> None:
        """Remove a tail that has ended."""
        tails = self._tails_by_token[caller.token_id]
        tails.discard(tail)
        if not tails:
            del self._tails_by_token[caller.token_id]

    def purge(self, hours: float) -> int:
        """Delete command records and stored responses that are older; return their number."""
        return self.log.purge_commands(older_than_hours=hours) + self.access.purge_responses(
            hours * 3600
        )

    def _diagnose(self) -> list[Finding]:
        return [
            msgspec.structs.replace(
                finding,
                message=self._without_directory(finding.message),
                cure=self._without_directory(finding.cure),
            )
            for finding in self.store.doctor()
        ]

    def _inspect_storage(self) -> StorageResponse:
        return StorageResponse([], []) if self.read_storage is None else self.read_storage()

    def _without_directory(self, text: str) -> str:
        return text.replace(self.data_directory, "") if self.data_directory else text

    # -- memory

    def hold(self, request: HttpRequest, size: int) -> None:
        """Count bytes of a body or response in the memory of the tenant.

        Raises:
            LimitExceeded: They do not fit.
        """
        self.memory.acquire(request.tenant_id, size)
        request.held_bytes += size

    def release(self, request: HttpRequest) -> None:
        """Stop counting the bytes of a request."""
        if request.held_bytes:
            self.memory.release(request.tenant_id, request.held_bytes)
            request.held_bytes = 0

    # -- authentication

    async def authenticate(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the caller of a request.

        Raises:
            Unauthorized: The token is missing or invalid.
            Forbidden: Tokens are not required, and the host is not a loopback address.
        """
        authorization = headers.get(b"authorization")
        if authorization is None and self._tokens_optional:
            # DNS rebinding: a web page could otherwise call this service through its own host name.
            if not is_loopback(host_name(headers)):
                msg = "without a token, use localhost or a loopback address as the host"
                raise Forbidden(msg)
            return Caller(subject=ANONYMOUS)
        kind, _, token = (authorization or b"").partition(b" ")
        if kind.lower() != b"bearer" or not token.isascii():
            raise invalid_token_error()
        return await self._authenticator.authenticate(token.decode().strip())

    async def authenticate_session(self, token_id: str) -> Caller:
        """Return the caller of a session; raises `Unauthorized` if its token has ended."""
        return await self._authenticator.authenticate_session(token_id)

    async def authenticate_again(self, request: HttpRequest) -> None:
        """Check that the caller of a long request still has a valid token.

        Raises:
            Unauthorized: The token was revoked or has expired since the request began.
        """
        if not request.derived:
            await self.authenticate(request.headers)
        elif request.caller.token_id:
            await self.authenticate_session(request.caller.token_id)
        elif request.caller.subject == ANONYMOUS and not self._tokens_optional:
            raise invalid_token_error()

    @property
    def tokens_optional(self) -> bool:
        """Whether requests without a token are accepted: on loopback, until one is created."""
        return self._tokens_optional

    # -- the log

    def view(self, tenant_id: str) -> Log:
        """Return the log of a tenant."""
        return self._view(tenant_id)[0]

    def aio(self, tenant_id: str) -> BaseAsyncLog:
        """Return the async log of a tenant; its threads count against the tenant's reads."""
        return self._view(tenant_id)[1]

    def _view(self, tenant_id: str) -> tuple[Log, BaseAsyncLog]:
        views = self._views.get(tenant_id)
        if views is None:
            if len(self._views) >= _VIEWS_MAX:
                self._views = {}
            log = self.log.for_tenant(tenant_id)
            run, compute = self._threads.run_for_tenant, self._threads.compute_for
            aio = BaseAsyncLog(log, partial(run, tenant_id), partial(compute, tenant_id))
            views = self._views[tenant_id] = log, aio
        return views

    @property
    def store(self) -> ServiceStore:
        """The store of the log, which is never another service."""
        return cast("ServiceStore", self.log.store)

    def problem(self, error: SeriatimError, request_id: str) -> Problem:
        """Convert an error to a problem, without paths of files or addresses of databases."""
        problem = problem_from_error(error, request_id)
        if isinstance(error, BackendFailure) and "host" in error.details:
            # Callers must not learn the address of the database: log it for the operator instead.
            logger.error("%s", error.message)
            msg = "the service cannot reach its database: see the log of the service"
            details = {"ambiguous": error.ambiguous}
            problem = msgspec.structs.replace(problem, detail=msg, details=details)
        if not self.data_directory or self.data_directory not in problem.detail:
            return problem
        return msgspec.structs.replace(problem, detail=self._without_directory(problem.detail))

    def opaque_event_id(self, event_id: str, tenant_id: str, position: int) -> str:
        """Return a value in place of the id of an event that the tenant may not see.

        It is the same for each request of this tenant and position, and reveals nothing else.
        """
        message = compose_key(event_id, tenant_id, str(position))
        digest = hmac.new(self._secret, message.encode(), sha256).hexdigest()
        return OPAQUE_ID_PREFIX + digest[:32]
