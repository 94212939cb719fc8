"""The application: finds the route, sees who calls, answers; every error becomes a problem."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec

from seriatim.api.connection import UnauthenticatedConnections
from seriatim.api.content_coding import (
    accepts_gzip,
    compress,
    decompress,
    is_compressible,
    is_gzipped,
)
from seriatim.api.http import (
    JSON,
    AsgiMessage,
    AsgiScope,
    ClientDisconnected,
    Headers,
    HttpRequest,
    HttpResponse,
    HttpStream,
    Receive,
    Send,
    StatusError,
    problem_response,
)
from seriatim.api.idempotency import run_once
from seriatim.api.observer import RequestObserver, start_request_span
from seriatim.api.openapi import encode_openapi
from seriatim.api.readiness import Readiness
from seriatim.api.request_bodies import BodyParser
from seriatim.api.routes import ROUTES, Route
from seriatim.api.service import SMALL_BODY_BYTES, Service
from seriatim.api.shutdown_deadline import ShutdownDeadline
from seriatim.api.thread_pools import LARGE_BODY_BYTES
from seriatim.core.errors import (
    BackendFailure,
    Forbidden,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    SeriatimError,
)
from seriatim.core.tenants import ALL_TENANTS
from seriatim.store.cancellation import Cancellation, cancellable
from seriatim.telemetry import tracing
from seriatim.telemetry.log_format import bind_request_id

logger = logging.getLogger("seriatim.api")

STALLED_CLIENT_S = 60.0  # a reader that takes nothing for so long is let go
SEND_BYTES = 64 * 1024  # at once: what waits in a connection is not counted as its tenant's
QUOTA_LIMITS = ("events_per_s", "bytes_per_s")
_START, _BODY = "http.response.start", "http.response.body"
_VARY = (b"vary", b"accept-encoding")
_WRONG_METHOD = 405
_GZIP_RATIO = 4  # of text, about; what is packed closer counts once it is unpacked
_REQUEST_ID_MAX = 128
_CORS_HEADERS = (
    b"authorization, content-type, idempotency-key, last-event-id, seriatim-tenant, "
    b"seriatim-timeout-s, traceparent, tracestate, x-request-id"
)
_encode = msgspec.json.Encoder().encode


class App:
    """An ASGI application over one log."""

    def __init__(
        self,
        make: Callable[[], Service],
        *,
        log_requests: bool = False,
        routes: Sequence[Route] = ROUTES,
        lifespan_context: Callable[[], AbstractContextManager[None]] = nullcontext,
        grace_s: float | None = None,
    ) -> None:
        self._grace_s = grace_s
        self._make = make
        self._around = lifespan_context
        self._log_requests = log_requests
        self._ids = map((secrets.token_hex(8) + "%08x").__mod__, itertools.count())
        self._routes = {(route.method, route.path): route for route in routes}
        self._methods: dict[str, list[str]] = {}
        for route in routes:
            known = self._methods.setdefault(route.path, [])
            known += ["GET", "HEAD"] if route.method == "GET" else [route.method]
        self._parsers = {
            route.endpoint: BodyParser(route.body)
            for route in routes
            if route.body is not None and not route.raw
        }
        self._open = {"/health": self._health, "/ready": self._ready}
        self._for_any = {"/v1/openapi.json": self._describe, "/metrics": self._metrics}
        for path in (*self._open, *self._for_any):
            self._methods[path] = ["GET", "HEAD"]
        self.service: Service
        self.observer: RequestObserver
        self.unauthenticated: UnauthenticatedConnections | None = None  # once there is a service

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one request, or live and end with the server."""
        if scope["type"] == "http":
            await self._serve(HttpRequest(scope, receive), send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        with self._around():
            await self._live_observed(receive, send)

    async def _live_observed(self, receive: Receive, send: Send) -> None:
        try:
            self.service = await asyncio.to_thread(self._make)
            await self.service.start()
            self.observer = RequestObserver(self.service, log_requests=self._log_requests)
            self._readiness = Readiness(self.service.log.head)
            serving = self.service.settings
            self.unauthenticated = UnauthenticatedConnections(
                serving.unauthenticated_connections,
                serving.unauthenticated_bytes,
                self.service.bounds.report,
            )
            self._on_signals()
        except SeriatimError as error:
            await send({"type": "lifespan.startup.failed", "message": error.message})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.observer.close()
        self._readiness.stop()
        await self.service.stop()
        await send({"type": "lifespan.shutdown.complete"})

    def _on_signals(self) -> None:
        """Let tails end on SIGTERM and SIGINT, since the server waits for open answers first."""
        if threading.current_thread() is not threading.main_thread():
            return
        deadline = None if self._grace_s is None else ShutdownDeadline(self._grace_s)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(number)

            def both(got: int, frame: Any, before: Any = before) -> None:
                if deadline is not None:
                    deadline.begin()
                loop.call_soon_threadsafe(self.service.hub.stop)
                if callable(before):
                    before(got, frame)

            signal.signal(number, both)

    # -- one request

    async def _serve(self, request: HttpRequest, send: Send) -> None:
        started = time.perf_counter()
        request.request_id = _given_id(request) or next(self._ids)
        route = self._routes.get((request.route_method, request.path))
        request.endpoint = "" if route is None else route.endpoint
        request.route = request.path if request.path in self._methods else ""
        bind_request_id(request.request_id)
        # The server may begin a pipelined request in the context of the one before it.
        work = Cancellation(nested=False)
        if request.connection is not None:
            request.connection.start_request(work.cancel)
        try:
            with cancellable(work):
                answer = await self._traced(request, route)
                size = await self._deliver(request, answer, send)
        finally:
            work.cancel()  # whatever still runs for it runs in vain
            self.service.release(request)
            if request.connection is not None:
                request.connection.on_lost = None
        took = time.perf_counter() - started
        self.observer.record_response(request, _status(answer), took, size)

    async def _traced(self, request: HttpRequest, route: Route | None) -> HttpResponse | HttpStream:
        if not tracing.is_active():
            return await self._answered(request, route)
        with start_request_span(request) as span:
            answer = await self._answered(request, route)
            span.set({"http.response.status_code": _status(answer)})
        return answer

    async def _deliver(
        self, request: HttpRequest, answer: HttpResponse | HttpStream, send: Send
    ) -> int:
        """Send an answer, and return how many bytes of it were sent."""
        if isinstance(answer, HttpStream):
            if request.method == "HEAD":
                headers = self._headers(request, answer.content_type, answer.headers)
                await self._push(request, send, {"type": _START, "status": 200, "headers": headers})
                await self._push(request, send, {"type": _BODY, "body": b""})
                return 0
            self.service.release(request)
            with self.observer.track_tail():
                return await self._stream(request, answer, send)
        answer = await self._compressed(request, answer)
        self._hold_answer(request, len(answer.body))
        await self._send(request, answer, send)
        return len(answer.body)

    def _hold_answer(self, request: HttpRequest, size: int) -> None:
        """Count an answer as its tenant's instead of the body that it answers."""
        if request.identified and not size <= request.held_bytes <= size + size // 3:
            self.service.release(request)
            self.service.memory.add(request.tenant_id, size)
            request.held_bytes = size

    async def _compressed(self, request: HttpRequest, answer: HttpResponse) -> HttpResponse:
        body, accepted = answer.body, request.headers.get(b"accept-encoding", b"")
        if not is_compressible(answer.content_type, len(body)):
            return answer
        varied = msgspec.structs.replace(answer, headers=(*answer.headers, _VARY))
        if not accepted or not accepts_gzip(accepted):
            return varied
        try:
            if len(body) <= LARGE_BODY_BYTES or not request.identified:
                made = compress(body)
            else:
                made = await self.service.run_for_tenant(request.tenant_id, compress, body)
        except SeriatimError:
            return varied  # its threads are busy: better sent as it is than not at all
        headers = (*varied.headers, (b"content-encoding", b"gzip"))
        return msgspec.structs.replace(varied, body=made, headers=headers)

    async def _answered(
        self, request: HttpRequest, route: Route | None
    ) -> HttpResponse | HttpStream:
        """Return the answer to a request; every error is one."""
        try:
            return await self._answer(request, route)
        except SeriatimError as error:
            return self._refusal(error, request)
        except StatusError as refused:
            return self._refusal(refused.error, request, refused.status, refused.headers)
        except ClientDisconnected:
            return HttpResponse(499)
        except asyncio.CancelledError:  # the server's time to end is over: this is the last word
            msg = "the service ended before this was done; it may have been done"
            return self._refusal(BackendFailure(msg, details={"ambiguous": True}), request)
        except Exception as error:
            logger.exception("a request failed in an unforeseen way")
            msg = f"the service failed in an unforeseen way ({type(error).__name__})"
            return self._refusal(BackendFailure(msg, details={"ambiguous": True}), request)

    def _refusal(
        self,
        error: SeriatimError,
        request: HttpRequest,
        status: int | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> HttpResponse:
        if isinstance(error, LimitExceeded):
            limit = str(error.details.get("limit", ""))
            self.service.bounds.report(limit, request.tenant_id if request.identified else "")
            if limit in QUOTA_LIMITS and request.connection is not None:
                request.connection.throttle()
        problem = self.service.problem(error, request.request_id)
        if status is not None:
            title = HTTPStatus(status).phrase
            problem = msgspec.structs.replace(problem, status=status, title=title)
        return problem_response(problem, error, headers)

    async def _answer(self, request: HttpRequest, route: Route | None) -> HttpResponse | HttpStream:
        if route is None:
            return await self._other(request)
        caller = await self.service.authenticate(request.headers)
        request.caller = caller
        if request.connection is not None:
            request.connection.mark_authenticated()
        request.tenant_id = caller.resolve_tenant(request.header(b"seriatim-tenant"))
        request.identified = True
        _check_rights(route, request)
        handle = partial(self._handled, route, request)
        return await self.service.queue.run(request.tenant_id, handle)

    async def _handled(self, route: Route, request: HttpRequest) -> HttpResponse | HttpStream:
        service = self.service
        if route.params is not None:
            params = request.params(route.params)
            return _response(route, await route.handler(service, request, params))
        raw = await self._body(route, request)
        if not _is_json(request.headers.get(b"content-type", b"")):
            msg = "the body is JSON: send Content-Type: application/json"
            raise InvalidArgument(msg, details={"argument": "content-type"})
        if route.raw:
            answer: HttpResponse = await route.handler(service, request, raw)
            return answer
        read = partial(self._parsers[route.endpoint], raw)
        body = await service.run_sized(request.tenant_id, len(raw), read)
        if route.stream:
            pieces: HttpStream = await route.handler(service, request, body)
            return pieces

        async def act() -> HttpResponse:
            made = _response(route, await route.handler(service, request, body))
            assert isinstance(made, HttpResponse)  # noqa: S101 - streams were answered above
            return made

        if route.writes and b"idempotency-key" in request.headers:
            return await run_once(service, request, raw, act)
        return await act()

    async def _body(self, route: Route, request: HttpRequest) -> bytes:
        """Read a body within its tenant's memory and quota; what is over them is not read."""
        service, serving = self.service, self.service.settings
        bound = serving.request_bytes if route.raw else min(serving.request_bytes, SMALL_BODY_BYTES)
        arrival = BodyAccounting(service, request, metered=route.raw)
        gzipped = is_gzipped(request)
        told = request.content_length()
        if told <= bound:
            arrival.announce(told)
        try:
            raw = await request.body(bound, serving.body_timeout_s, arrival)
        finally:
            arrival.end()
        if not gzipped:
            return raw
        expected = min(bound, _GZIP_RATIO * len(raw))
        service.hold(request, expected)
        plain = await service.run_for_tenant(request.tenant_id, decompress, raw, bound)
        service.hold(request, max(0, len(plain) - expected))
        arrival.charge(max(0, len(plain) - len(raw)))
        return plain

    # -- what is no route of the log

    async def _other(self, request: HttpRequest) -> HttpResponse:
        reads = request.route_method == "GET"
        if request.path in self._open:
            if not reads:
                raise self._wrong_method(request)
            return await self._open[request.path]()
        if preflight := self._preflight(request):
            return preflight
        request.caller = await self.service.authenticate(request.headers)
        if request.connection is not None:
            request.connection.mark_authenticated()
        if request.path in self._for_any and reads:
            return await self._for_any[request.path](request)
        if request.path in self._methods:
            raise self._wrong_method(request)
        raise NotFound("there is no such path")

    def allowed_methods(self, path: str) -> str:
        """Return the methods of a path as Allow names them; of an unknown path, every one."""
        return ", ".join(self._methods.get(path, ("GET", "HEAD", "POST")))

    def _wrong_method(self, request: HttpRequest) -> StatusError:
        allowed = self.allowed_methods(request.path)
        msg = f"{request.method[:20]} is not for this path: {allowed}"
        error = InvalidArgument(msg, details={"argument": "method"})
        return StatusError(error, _WRONG_METHOD, ((b"allow", allowed.encode()),))

    async def _health(self) -> HttpResponse:
        return HttpResponse(200, b'{"status":"alive"}')

    async def _ready(self) -> HttpResponse:
        """Tell whether the store answers; anybody may ask, so nothing of it is told."""
        await self._readiness.check()
        return HttpResponse(200, b'{"status":"ready"}')

    async def _describe(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse(200, encode_openapi(self.service.limits, self.service.settings))

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        """Show metrics: their labels name tenants, so only who operates for all may see them."""
        request.caller.require("operate", service=True)
        _check_for_all(request)
        accept = request.headers.get(b"accept", b"").decode("latin-1")
        return await self.service.run(self.observer.render_metrics, accept)

    # -- sending

    def _preflight(self, request: HttpRequest) -> HttpResponse | None:
        origin = self._allowed_origin(request)
        if request.method != "OPTIONS" or origin is None:
            return None
        headers = (
            (b"access-control-allow-methods", b"GET, HEAD, POST"),
            (b"access-control-allow-headers", _CORS_HEADERS),
            (b"access-control-max-age", b"600"),
        )
        return HttpResponse(204, b"", headers=headers)

    def _allowed_origin(self, request: HttpRequest) -> bytes | None:
        origin = request.headers.get(b"origin")
        allowed = self.service.settings.cors_origins
        return origin if origin and origin.decode("latin-1") in allowed else None

    def _headers(self, request: HttpRequest, content_type: bytes, more: Headers) -> list[Any]:
        headers = [
            (b"content-type", content_type),
            (b"x-request-id", request.request_id.encode()),
            *more,
        ]
        if self.service.settings.cors_origins and (origin := self._allowed_origin(request)):
            headers += [
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", b"retry-after, seriatim-replayed, x-request-id"),
                (b"vary", b"origin"),
            ]
        return headers

    async def _send(self, request: HttpRequest, answer: HttpResponse, send: Send) -> None:
        headers = self._headers(request, answer.content_type, answer.headers)
        if answer.status != HTTPStatus.NO_CONTENT:
            headers.append((b"content-length", b"%d" % len(answer.body)))
        await self._push(
            request, send, {"type": _START, "status": answer.status, "headers": headers}
        )
        body = memoryview(answer.body)
        for begin in range(0, len(body) or 1, SEND_BYTES):
            end = begin + SEND_BYTES
            more = end < len(body)
            piece = answer.body if len(body) <= SEND_BYTES else body[begin:end]
            if not await self._push(
                request, send, {"type": _BODY, "body": piece, "more_body": more}
            ):
                return

    async def _push(self, request: HttpRequest, send: Send, message: AsgiMessage) -> bool:
        """Send a message; a reader that takes nothing for too long is let go, which is False."""
        connection = request.connection
        if connection is not None and not connection.stalled:
            await send(message)  # to wait for nothing needs no clock
            return True
        try:
            async with asyncio.timeout(STALLED_CLIENT_S):
                await send(message)
        except TimeoutError:
            self.service.bounds.report("stalled_s", request.tenant_id if request.identified else "")
            if connection is not None:
                connection.abort()
            return False
        return True

    async def _stream(self, request: HttpRequest, answer: HttpStream, send: Send) -> int:
        """Send pieces until they end, the reader leaves, or takes nothing for too long."""
        headers = self._headers(request, answer.content_type, answer.headers)
        await self._push(request, send, {"type": _START, "status": 200, "headers": headers})
        sizes = [0]
        sending = asyncio.create_task(self._send_pieces(request, answer, send, sizes))
        leaving = asyncio.create_task(request.wait_for_disconnect())
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            for task in (sending, leaving):
                with suppress(asyncio.CancelledError):
                    await task
        return sum(sizes)

    async def _send_pieces(
        self, request: HttpRequest, answer: HttpStream, send: Send, sizes: list[int]
    ) -> None:
        pieces = answer.pieces
        try:
            async for piece in pieces:
                body = memoryview(piece)
                for begin in range(0, len(body), SEND_BYTES):
                    part = piece if len(body) <= SEND_BYTES else body[begin : begin + SEND_BYTES]
                    if not await self._push(
                        request, send, {"type": _BODY, "body": part, "more_body": True}
                    ):
                        return
                sizes[0] += len(piece)
            await self._push(request, send, {"type": _BODY, "body": b"", "more_body": False})
        finally:
            aclose = getattr(pieces, "aclose", None)
            if aclose is not None:
                await aclose()


class BodyAccounting:
    """Counts a body as it comes: as its tenant's memory and, of an append, against its quota."""

    def __init__(self, service: Service, request: HttpRequest, *, metered: bool) -> None:
        self._service = service
        self._request = request
        self._metered = metered
        self._announced = 0
        self._arrived = 0
        if metered:
            self._check()
            if request.connection is not None:
                request.connection.on_discard = self.charge

    def announce(self, size: int) -> None:
        """Count a body as a whole, as its head tells: it is refused before it comes."""
        self._count(size)
        self._announced = size

    def __call__(self, size: int) -> None:
        """Count what has come beyond what was announced."""
        self._arrived += size
        if (more := self._arrived - self._announced) > 0:
            self._announced = self._arrived
            self._count(more)

    def _count(self, size: int) -> None:
        own, self._request.charged_bytes = (
            self._request.charged_bytes,
            self._request.charged_bytes + size,
        )
        self.charge(size)
        if self._metered and own:
            self._check()
        self._service.hold(self._request, size)

    def _check(self) -> None:
        now = asyncio.get_running_loop().time()
        self._service.meter.check(self._request.tenant_id, now, self._request.charged_bytes)

    def charge(self, size: int) -> None:
        """Count bytes against the quota."""
        if self._metered:
            now = asyncio.get_running_loop().time()
            self._service.meter.charge_bytes(self._request.tenant_id, size, now)

    def end(self) -> None:
        """Take back the charge for what was announced and never came."""
        missing = self._announced - self._arrived
        if missing > 0:
            self._request.charged_bytes -= missing
            self.charge(-missing)


def _response(route: Route, found: Any) -> HttpResponse | HttpStream:
    if isinstance(found, HttpResponse | HttpStream):
        return found
    return HttpResponse(route.status, _encode(found))


def _check_rights(route: Route, request: HttpRequest) -> None:
    caller = request.caller
    if route.right is not None:
        caller.require(route.right, service=route.service)
    if route.all_types:
        caller.require_all_types()
    if route.every_tenant:
        _check_for_all(request)


def _check_for_all(request: HttpRequest) -> None:
    if request.caller.tenant_id != ALL_TENANTS:
        raise Forbidden("this is about the whole log, this token is for one tenant")


def _status(answer: HttpResponse | HttpStream) -> int:
    return 200 if isinstance(answer, HttpStream) else answer.status


def _given_id(request: HttpRequest) -> str | None:
    given = request.headers.get(b"x-request-id", b"")
    if given and len(given) <= _REQUEST_ID_MAX and given.isascii():
        text = given.decode()
        if text.isprintable() and text == text.strip():
            return text
    return None


def _is_json(content_type: bytes) -> bool:
    return content_type.split(b";", 1)[0].strip().lower() == JSON
