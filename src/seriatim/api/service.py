"""What every endpoint works with: the log, who may use it, and the bounds of a process."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from typing import Literal, cast

import msgspec

from seriatim.access.quotas import Quota, QuotaMeter
from seriatim.access.rights import ANONYMOUS, Caller
from seriatim.access.store import AccessStore
from seriatim.access.tokens import invalid_token_error
from seriatim.api.authentication import TOKEN_CACHE_S, Authenticator
from seriatim.api.http import HttpRequest
from seriatim.api.hub import Hub
from seriatim.api.limit_reporter import LimitReporter
from seriatim.api.memory_budget import MemoryBudget
from seriatim.api.request_queue import RequestQueue
from seriatim.api.tail_buffer import TailBuffer
from seriatim.api.tenant_limiter import TenantLimiter
from seriatim.api.thread_pools import ThreadPools
from seriatim.core.errors import BackendFailure, Forbidden, SeriatimError
from seriatim.core.ids import compose_key
from seriatim.core.limits import KIB, MIB
from seriatim.delivery.registry import Registry
from seriatim.factory import Log
from seriatim.log.async_log import AsyncLog
from seriatim.store.port import ServiceStore
from seriatim.wire.problems import Problem, problem_from_error

logger = logging.getLogger("seriatim.api")

VERSION = version("seriatim")
SMALL_BODY_BYTES = 4 * MIB  # of a body that appends nothing

_VIEWS_MAX = 10_000
_ENDED_LOOK_S = 1.0  # how soon an open tail notices that its token has ended
_ENDED_SLACK_S = 60.0


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(header: bytes) -> str:
    """Return the host of a header Host, without its port."""
    name = header.decode("latin-1")
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the service behaves: bounds, quotas, and whom it lets in."""

    open_on_loopback: bool = False  # no token is asked for while none was ever made
    request_bytes: int = 17 * MIB
    request_timeout_s: float = 30.0
    body_timeout_s: float = 30.0
    wait_max_s: float = 60.0
    tail_buffer: int = 1000
    tenant_memory_bytes: int = 128 * MIB  # of request bodies and unsent answers
    unauthenticated_connections: int = 2048
    unauthenticated_bytes: int = 32 * MIB  # of heads and bodies without a valid token
    grace_s: float = 30.0  # from SIGTERM to the end, whatever is under way
    own_process: bool = False  # whether the process may be ended when the grace period is over
    tenant_tails: int = 5000  # half of all that may be open
    tenant_in_flight: int = 64  # appends of a tenant that is alone
    tenant_in_flight_beside: int = 4  # and while others are there
    tenant_waiting: int = 1024
    tenant_reads: int = 2  # reads of a tenant that is alone: as many answers as its memory holds
    tenant_reads_beside: int = 2
    tenant_reads_waiting: int = 16_384  # more than there may be tails
    tenant_cursors: int = 10_000  # of each purpose
    tenant_leases: int = 10_000
    tenant_answers: int = 100_000  # kept for twins of commands that append nothing
    answer_bytes: int = 64 * KIB  # what is larger is not kept: its twin runs again
    cursor_query_bytes: int = 256 * KIB
    threads: int = 32
    events_per_s: float = 0.0
    bytes_per_s: float = 0.0
    processes: int = 1
    cors_origins: tuple[str, ...] = ()
    purge_every_s: float = 3600.0
    command_hours: float = 24.0
    log_requests: bool = False
    log_format: Literal["text", "json"] | None = None  # None: who runs it sees to logs
    otel: bool | None = False  # None: if the environment names where spans go


class Service:
    """One process of the service."""

    def __init__(
        self,
        log: Log,
        access: AccessStore,
        serving: ServiceSettings,
        registry: Callable[[], Registry],
    ) -> None:
        self.log = log
        self.limits = log.settings.limits
        self.access = access
        self.settings = serving
        self.registry = registry
        self.queue = RequestQueue()
        self.append_limiter = TenantLimiter(
            serving.tenant_in_flight, serving.tenant_in_flight_beside, serving.tenant_waiting
        )
        reads = TenantLimiter(
            serving.tenant_reads,
            serving.tenant_reads_beside,
            serving.tenant_reads_waiting,
            "reads",
        )
        self._threads = ThreadPools(serving.threads, reads, serving.request_timeout_s, self.queue)
        self.run, self.run_access = self._threads.run, self._threads.run_access
        self.run_for_tenant, self.run_sized = self._threads.run_for_tenant, self._threads.run_sized
        general = Quota(
            tenant_id="*", events_per_s=serving.events_per_s, bytes_per_s=serving.bytes_per_s
        )
        self.meter = QuotaMeter(general, processes=serving.processes)
        self.memory = MemoryBudget(serving.tenant_memory_bytes)
        self.bounds = LimitReporter()
        self.hub = Hub(log, self.run, self.memory, self.bounds, buffer=serving.tail_buffer)
        self._admission = Authenticator(access, self.run_access)
        self._open = serving.open_on_loopback
        self._views: dict[str, tuple[Log, AsyncLog]] = {}
        self._secret = access.secret("tips")
        self._followers: dict[str, set[TailBuffer]] = {}  # open tails by the id of their token
        self._keepers: list[asyncio.Task[None]] = []
        self.on_stop: Callable[[], None] | None = None
        self.data_directory = ""  # in which the log's files lie, if it has any

    # -- life

    async def start(self) -> None:
        """Begin to keep what changes: quotas, the first token, old command records."""
        self.hub.start()
        await self._look_around()
        self._keepers = [asyncio.create_task(act()) for act in (self._keep, self._end_tails)]

    async def stop(self) -> None:
        """Finish what was accepted, then let go of everything."""
        for keeper in self._keepers:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
        self.hub.stop()
        with suppress(SeriatimError):
            await self._admission.write_uses(all_tokens=True)
        await asyncio.to_thread(self.log.close)
        await asyncio.to_thread(self.hub.join)
        self._threads.stop()
        self.access.close()
        if self.on_stop is not None:
            self.on_stop()

    async def _keep(self) -> None:
        purged = time.monotonic()
        while True:
            await asyncio.sleep(TOKEN_CACHE_S)
            with suppress(SeriatimError):  # tried again: what was known still holds
                await self._look_around()
            with suppress(SeriatimError):
                await self._admission.write_uses()
            if time.monotonic() - purged >= self.settings.purge_every_s:
                purged = time.monotonic()
                with suppress(SeriatimError):
                    await self.run(self.purge, self.settings.command_hours)

    async def _look_around(self) -> None:
        self.meter.set_quotas(await self.run_access(self.access.quotas))
        if self._open:
            self._open = not await self.run_access(self.access.has_tokens)
            if not self._open:
                self._send_away([""])  # who followed without a token

    async def _end_tails(self) -> None:
        """Let go of tails whose tokens have ended, however busy or quiet they are."""
        looked = time.monotonic()
        while True:
            await asyncio.sleep(_ENDED_LOOK_S)
            began = time.monotonic()
            if self._followers:
                try:
                    since_s = began - looked + _ENDED_SLACK_S
                    self._send_away(await self.run_access(self.access.find_ended_tokens, since_s))
                except SeriatimError:
                    continue  # tried again, and asked for as much longer
            looked = began

    def _send_away(self, token_ids: list[str]) -> None:
        for token_id in token_ids:
            for tail in self._followers.get(token_id, ()):
                tail.mark_lagging(invalid_token_error())

    def track_tail(self, caller: Caller, tail: TailBuffer) -> None:
        """Remember by whose token a tail is open."""
        self._followers.setdefault(caller.token_id, set()).add(tail)

    def untrack_tail(self, caller: Caller, tail: TailBuffer) -> None:
        """Forget a tail that has ended."""
        tails = self._followers[caller.token_id]
        tails.discard(tail)
        if not tails:
            del self._followers[caller.token_id]

    def purge(self, hours: float) -> int:
        """Forget command records and answers that are older than this."""
        return self.log.purge_commands(older_than_hours=hours) + self.access.purge_responses(
            hours * 3600
        )

    # -- memory

    def hold(self, request: HttpRequest, size: int) -> None:
        """Count bytes of a request's body or answer as its tenant's, or refuse them."""
        self.memory.acquire(request.tenant_id, size)
        request.held_bytes += size

    def release(self, request: HttpRequest) -> None:
        """Count the bytes of a request no longer."""
        if request.held_bytes:
            self.memory.release(request.tenant_id, request.held_bytes)
            request.held_bytes = 0

    # -- who calls

    async def authenticate(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return who calls, by what the head of a request says."""
        authorization = headers.get(b"authorization")
        if authorization is None and self._open:
            # A page whose name leads here would speak for whoever looks at it.
            if not is_loopback(_host(headers.get(b"host", b""))):
                msg = "without a token this service is called localhost, or by a loopback address"
                raise Forbidden(msg)
            return Caller(subject=ANONYMOUS)
        kind, _, token = (authorization or b"").partition(b" ")
        if kind.lower() != b"bearer" or not token.isascii():
            raise invalid_token_error()
        return await self._admission.authenticate(token.decode().strip())

    # -- the log

    def view(self, tenant_id: str) -> Log:
        """Return the log as a tenant sees it."""
        return self._view(tenant_id)[0]

    def aio(self, tenant_id: str) -> AsyncLog:
        """Return the same, awaited; what it does in threads it does in the tenant's turns."""
        return self._view(tenant_id)[1]

    def _view(self, tenant_id: str) -> tuple[Log, AsyncLog]:
        found = self._views.get(tenant_id)
        if found is None:
            if len(self._views) >= _VIEWS_MAX:
                self._views = {}
            log = self.log.for_tenant(tenant_id)
            run, compute = self._threads.run_for_tenant, self._threads.compute_for
            aio = AsyncLog(log, partial(run, tenant_id), partial(compute, tenant_id))
            found = self._views[tenant_id] = log, aio
        return found

    @property
    def store(self) -> ServiceStore:
        """The log's own database: a service is never beside another service."""
        return cast("ServiceStore", self.log.store)

    def problem(self, error: SeriatimError, request_id: str) -> Problem:
        """Return an error as callers are told it: where files lie is nothing to them."""
        told = problem_from_error(error, request_id)
        if isinstance(error, BackendFailure) and "host" in error.details:
            # Where the database is is nothing to callers; the operator's log has the reason.
            logger.error("%s", error.message)
            msg = "the service cannot reach its database; its log says why"
            details = {"ambiguous": error.ambiguous}
            told = msgspec.structs.replace(told, detail=msg, details=details)
        if not self.data_directory or self.data_directory not in told.detail:
            return told
        return msgspec.structs.replace(told, detail=told.detail.replace(self.data_directory, ""))

    def opaque_event_id(self, event_id: str, tenant_id: str, position: int) -> str:
        """Return what stands for a foreign event's id: comparable there, by that reader alone."""
        told = compose_key(event_id, tenant_id, str(position))
        return "tip:" + hmac.new(self._secret, told.encode(), sha256).hexdigest()[:32]
