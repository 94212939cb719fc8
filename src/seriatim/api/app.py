"""The ASGI application: routing, authentication, request bodies, and responses.

Every error becomes a problem response (RFC 9457).
"""

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
from typing import Any, Protocol

import msgspec

from seriatim.api.connection import UnauthenticatedConnections
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
    accepts_gzip,
    compress,
    decompress,
    is_compressible,
    is_gzipped,
    problem_response,
)
from seriatim.api.idempotency import run_once
from seriatim.api.openapi import encode_openapi
from seriatim.api.process_lifecycle import Readiness, ShutdownDeadline
from seriatim.api.request_bodies import BodyParser
from seriatim.api.routes import ROUTES, Route
from seriatim.api.service import SMALL_BODY_BYTES, Service
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
from seriatim.telemetry import tracer
from seriatim.telemetry.log_format import bind_request_id
from seriatim.telemetry.log_metrics import LogMetrics
from seriatim.telemetry.metrics import LABEL_VALUES_MAX, Metrics, ServiceMetrics
from seriatim.wire.problems import TOO_MANY_REQUESTS

logger = logging.getLogger("seriatim.api")

UNKNOWN_ROUTE = "other"  # unknown paths would make the number of labels unbounded
GAUGE_CACHE_S = 10.0  # the lag of all tenants' consumers takes many reads
_SERVER_ERROR = 500
STALLED_CLIENT_S = 60.0  # a connection is aborted if its client accepts nothing for this long
SEND_BYTES = 64 * 1024  # per message: a connection's write buffer is outside the memory budget
QUOTA_LIMITS = ("events_per_s", "bytes_per_s")
_START, _BODY = "http.response.start", "http.response.body"
_VARY = (b"vary", b"accept-encoding")
_METHOD_NOT_ALLOWED = 405
_GZIP_RATIO = 4  # typical of text; the rest of a denser body is counted after decompression
_REQUEST_ID_MAX = 128
_CORS_HEADERS = (
    b"authorization, content-type, idempotency-key, last-event-id, seriatim-tenant, "
    b"seriatim-timeout-s, traceparent, tracestate, x-request-id"
)
_encode = msgspec.json.Encoder().encode


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
    return tracer.span(
        request.endpoint or request.method,
        kind="server",
        attributes={
            "http.request.method": request.method,
            "seriatim.request_id": request.request_id,
        },
        parent=tracer.extract(headers),
    )


class Mount(Protocol):
    """A part of the application with paths of its own, such as the console."""

    def has_path(self, path: str) -> bool:
        """Return whether the mount handles a path."""

    async def handle(self, app: App, request: HttpRequest) -> HttpResponse | HttpStream:
        """Respond to a request, including its authentication, and set its `route` for metrics."""

    def start(self, app: App) -> None:
        """Start background work when the service has started."""

    async def stop(self) -> None:
        """End background work, before the service closes its log."""


class App:
    """An ASGI application over one log.

    Args:
        make_service: Opens the service; called in a thread when the server starts.
        log_requests: Log every request, not only those that fail.
        routes: The routes to serve.
        lifespan_context: Entered for as long as the application runs, e.g. to export spans.
        grace_s: End the process this many seconds after SIGTERM; None to never end it.
        mount: Handles the paths that no route has, such as the console; None refuses them.
    """

    def __init__(
        self,
        make_service: Callable[[], Service],
        *,
        log_requests: bool = False,
        routes: Sequence[Route] = ROUTES,
        lifespan_context: Callable[[], AbstractContextManager[None]] = nullcontext,
        grace_s: float | None = None,
        mount: Mount | None = None,
    ) -> None:
        self._grace_s = grace_s
        self._mount = mount
        self._make_service = make_service
        self._lifespan_context = lifespan_context
        self._log_requests = log_requests
        self._ids = map((secrets.token_hex(8) + "%08x").__mod__, itertools.count())
        self._routes = {(route.method, route.path): route for route in routes}
        self._methods: dict[str, list[str]] = {}
        for route in routes:
            methods = self._methods.setdefault(route.path, [])
            methods += ["GET", "HEAD"] if route.method == "GET" else [route.method]
        self._parsers = {
            route.endpoint: BodyParser(route.body)
            for route in routes
            if route.body is not None and not route.raw
        }
        self._public_paths = {"/health": self._health, "/ready": self._ready}
        self._token_paths = {"/v1/openapi.json": self._send_openapi, "/metrics": self._metrics}
        for path in (*self._public_paths, *self._token_paths):
            self._methods[path] = ["GET", "HEAD"]
        self.service: Service
        self.observer: RequestObserver
        self.unauthenticated: UnauthenticatedConnections | None = None  # set at startup

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one request, or run the lifespan protocol of the server."""
        if scope["type"] == "http":
            await self._serve(HttpRequest(scope, receive), send)
        elif scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        with self._lifespan_context():
            await self._run_service(receive, send)

    async def _run_service(self, receive: Receive, send: Send) -> None:
        try:
            self.service = await asyncio.to_thread(self._make_service)
            await self.service.start()
            self.observer = RequestObserver(self.service, log_requests=self._log_requests)
            self._readiness = Readiness(self.service.log.head)
            settings = self.service.settings
            self.unauthenticated = UnauthenticatedConnections(
                settings.unauthenticated_connections,
                settings.unauthenticated_bytes,
                self.service.bounds.report,
            )
            self._install_signal_handlers()
            if self._mount is not None:
                self._mount.start(self)
        except SeriatimError as error:
            # The server then ends with this message; an exception would add a traceback.
            await send({"type": "lifespan.startup.failed", "message": error.message})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._mount is not None:
            await self._mount.stop()
        self.observer.close()
        self._readiness.stop()
        await self.service.stop()
        await send({"type": "lifespan.shutdown.complete"})

    def _install_signal_handlers(self) -> None:
        """End tails on SIGTERM and SIGINT.

        uvicorn waits for open responses before it shuts down, and a tail has no end of its own.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        deadline = None if self._grace_s is None else ShutdownDeadline(self._grace_s)
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            previous = signal.getsignal(signal_number)

            def handle_signal(signum: int, frame: Any, previous: Any = previous) -> None:
                if deadline is not None:
                    deadline.begin()
                loop.call_soon_threadsafe(self.service.hub.stop)
                if callable(previous):
                    previous(signum, frame)

            signal.signal(signal_number, handle_signal)

    # -- one request

    async def _serve(self, request: HttpRequest, send: Send) -> None:
        """Respond to a request, cancel its work when it ends, and record its telemetry."""
        started = time.perf_counter()
        request.request_id = _find_request_id(request) or next(self._ids)
        route = self._routes.get((request.route_method, request.path))
        request.endpoint = "" if route is None else route.endpoint
        request.route = request.path if request.path in self._methods else ""
        bind_request_id(request.request_id)
        # The server may begin a pipelined request in the context of the one before it.
        work = Cancellation(nested=False)
        if request.connection is not None:
            request.connection.start_request(work.cancel)
        try:
            # The threads of this request find `work` in its context, and stop their reads with it.
            with cancellable(work):
                response = await self._respond_with_span(request, route)
                size = await self._deliver(request, response, send)
        finally:
            work.cancel()  # nothing needs the result of work that still runs
            self.service.release(request)
            if request.connection is not None:
                request.connection.on_lost = None
        elapsed = time.perf_counter() - started
        self.observer.record_response(request, _status_of(response), elapsed, size)

    async def _respond_with_span(
        self, request: HttpRequest, route: Route | None
    ) -> HttpResponse | HttpStream:
        if not tracer.is_active():
            return await self._respond(request, route)
        with start_request_span(request) as span:
            response = await self._respond(request, route)
            span.set({"http.response.status_code": _status_of(response)})
        return response

    async def _deliver(
        self, request: HttpRequest, response: HttpResponse | HttpStream, send: Send
    ) -> int:
        """Send a response, and return the number of bytes of its body."""
        if isinstance(response, HttpStream):
            if request.method == "HEAD":
                headers = self._headers(request, response.content_type, response.headers)
                await self._send_message(
                    request, send, {"type": _START, "status": 200, "headers": headers}
                )
                await self._send_message(request, send, {"type": _BODY, "body": b""})
                return 0
            self.service.release(request)  # a tail may last for hours: its body is not needed
            with self.observer.track_tail():
                return await self._stream(request, response, send)
        response = await self._compress(request, response)
        self._hold_response(request, len(response.body))
        await self._send(request, response, send)
        return len(response.body)

    def _hold_response(self, request: HttpRequest, size: int) -> None:
        """Count a response in the tenant's memory, in place of the request body."""
        # A response with records is counted already, with up to a third for its encoding.
        if request.identified and not size <= request.held_bytes <= size + size // 3:
            self.service.release(request)
            self.service.memory.add(request.tenant_id, size)
            request.held_bytes = size

    async def _compress(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        body, accepted = response.body, request.headers.get(b"accept-encoding", b"")
        if not is_compressible(response.content_type, len(body)):
            return response
        # Both forms have this header: a cache must not send one client the form of another.
        uncompressed = msgspec.structs.replace(response, headers=(*response.headers, _VARY))
        if not accepted or not accepts_gzip(accepted):
            return uncompressed
        try:
            if len(body) <= LARGE_BODY_BYTES or not request.identified:
                compressed = compress(body)
            else:
                compressed = await self.service.run_for_tenant(request.tenant_id, compress, body)
        except SeriatimError:
            return uncompressed  # the tenant's threads are busy: send it uncompressed
        headers = (*uncompressed.headers, (b"content-encoding", b"gzip"))
        return msgspec.structs.replace(uncompressed, body=compressed, headers=headers)

    async def _respond(
        self, request: HttpRequest, route: Route | None
    ) -> HttpResponse | HttpStream:
        """Return the response to a request; errors become problem responses."""
        try:
            return await self._dispatch(request, route)
        except SeriatimError as error:
            return self._error_response(error, request)
        except StatusError as refusal:
            return self._error_response(refusal.error, request, refusal.status, refusal.headers)
        except ClientDisconnected:
            return HttpResponse(499)
        except asyncio.CancelledError:
            # The grace period is over: this is the last chance to respond.
            msg = "the service stopped while processing this request, which may have succeeded"
            return self._error_response(BackendFailure(msg, details={"ambiguous": True}), request)
        except Exception as error:
            logger.exception("a request failed with an unexpected error")
            msg = f"the service failed with an unexpected error ({type(error).__name__})"
            return self._error_response(BackendFailure(msg, details={"ambiguous": True}), request)

    def _error_response(
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

    async def _dispatch(
        self, request: HttpRequest, route: Route | None
    ) -> HttpResponse | HttpStream:
        """Identify the caller and tenant, check the rights of the caller, and run the route."""
        if route is None:
            return await self._handle_other_path(request)
        caller = await self.service.authenticate(request.headers)
        request.caller = caller
        if request.connection is not None:
            request.connection.mark_authenticated()
        request.tenant_id = caller.resolve_tenant(request.header(b"seriatim-tenant"))
        request.identified = True
        _check_rights(route, request)
        handle = partial(self._handle, route, request)
        # Other paths are not queued: health checks respond even if tenants fill the event loop.
        return await self.service.queue.run(request.tenant_id, handle)

    async def call(self, request: HttpRequest) -> HttpResponse | HttpStream:
        """Run a route in the process, for a caller and tenant that are already identified.

        The console renders its pages from such calls, so that its reads and actions have the
        rights, bounds and errors of the HTTP API.

        Raises:
            SeriatimError: The call failed; the error is the one that the API would report.
            Forbidden: The caller lacks a right that the route needs.
        """
        route = self._routes[request.route_method, request.path]
        request.endpoint = route.endpoint
        _check_rights(route, request)
        try:
            return await self._handle(route, request)
        finally:
            self.service.release(request)

    async def _handle(self, route: Route, request: HttpRequest) -> HttpResponse | HttpStream:
        """Parse the parameters or the body of a request, and call the endpoint of its route."""
        service = self.service
        if route.params is not None:
            params = request.params(route.params)
            result = await route.handler(service, request, params)
            return result if isinstance(result, HttpStream) else _make_response(route, result)
        raw = await self._read_body(route, request)
        if not _is_json(request.headers.get(b"content-type", b"")):
            msg = "the body must be JSON: send Content-Type: application/json"
            raise InvalidArgument(msg, details={"argument": "content-type"})
        if route.raw:  # appends, which handle idempotency keys themselves
            response: HttpResponse = await route.handler(service, request, raw)
            return response
        parse = partial(self._parsers[route.endpoint], raw)
        body = await service.run_sized(request.tenant_id, len(raw), parse)
        if route.stream:
            stream: HttpStream = await route.handler(service, request, body)
            return stream

        async def run() -> HttpResponse:
            return _make_response(route, await route.handler(service, request, body))

        if route.writes and b"idempotency-key" in request.headers:
            return await run_once(service, request, raw, run)
        return await run()

    async def _read_body(self, route: Route, request: HttpRequest) -> bytes:
        """Read a body within the memory and quota of its tenant.

        A body whose declared length exceeds them is refused before it is read.
        """
        service, settings = self.service, self.service.settings
        bound = (
            settings.request_bytes if route.raw else min(settings.request_bytes, SMALL_BODY_BYTES)
        )
        accounting = BodyAccounting(service, request, metered=route.raw)
        gzipped = is_gzipped(request)
        declared = request.content_length()
        if declared <= bound:
            accounting.declare(declared)
        try:
            raw = await request.body(bound, settings.body_timeout_s, accounting)
        finally:
            accounting.end()
        if not gzipped:
            return raw
        # The size is known only after decompression: count an estimate first, then the difference.
        expected = min(bound, _GZIP_RATIO * len(raw))
        service.hold(request, expected)
        decompressed = await service.run_for_tenant(request.tenant_id, decompress, raw, bound)
        service.hold(request, max(0, len(decompressed) - expected))
        accounting.charge(max(0, len(decompressed) - len(raw)))
        return decompressed

    # -- paths other than routes of the log

    async def _handle_other_path(self, request: HttpRequest) -> HttpResponse | HttpStream:
        """Respond for health checks, the mount, CORS, metrics and the OpenAPI document.

        Raises:
            StatusError: The path does not accept the method.
            NotFound: There is no such path.
        """
        is_read = request.route_method == "GET"
        if request.path in self._public_paths:
            if not is_read:
                raise self._method_error(request)
            return await self._public_paths[request.path]()
        if self._mount is not None and self._mount.has_path(request.path):
            return await self._mount.handle(self, request)
        if preflight := self._preflight(request):
            return preflight
        request.caller = await self.service.authenticate(request.headers)
        if request.connection is not None:
            request.connection.mark_authenticated()
        if request.path in self._token_paths and is_read:
            return await self._token_paths[request.path](request)
        if request.path in self._methods:
            raise self._method_error(request)
        raise NotFound("no such path: GET /v1/openapi.json lists them all")

    def allowed_methods(self, path: str) -> str:
        """Return the value of the Allow header for a path; all methods if the path is unknown."""
        return ", ".join(self._methods.get(path, ("GET", "HEAD", "POST")))

    def _method_error(self, request: HttpRequest) -> StatusError:
        allowed = self.allowed_methods(request.path)
        msg = f"{request.method[:20]} is not allowed for this path, which accepts {allowed}"
        error = InvalidArgument(msg, details={"argument": "method"})
        return StatusError(error, _METHOD_NOT_ALLOWED, ((b"allow", allowed.encode()),))

    async def _health(self) -> HttpResponse:
        return HttpResponse(200, b'{"status":"alive"}')

    async def _ready(self) -> HttpResponse:
        """Report whether the store responds; without a token, so without details."""
        await self._readiness.check()
        return HttpResponse(200, b'{"status":"ready"}')

    async def _send_openapi(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse(200, encode_openapi(self.service.limits, self.service.settings))

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        """Return metrics; labels name tenants, so the right `operate` for all tenants is needed."""
        request.caller.require("operate", service=True)
        _require_all_tenants(request)
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

    def _headers(self, request: HttpRequest, content_type: bytes, extra: Headers) -> list[Any]:
        headers = [
            (b"content-type", content_type),
            (b"x-request-id", request.request_id.encode()),
            *extra,
        ]
        if self.service.settings.cors_origins and (origin := self._allowed_origin(request)):
            headers += [
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", b"retry-after, seriatim-replayed, x-request-id"),
                (b"vary", b"origin"),
            ]
        return headers

    async def _send(self, request: HttpRequest, response: HttpResponse, send: Send) -> None:
        headers = self._headers(request, response.content_type, response.headers)
        if response.status != HTTPStatus.NO_CONTENT:
            headers.append((b"content-length", b"%d" % len(response.body)))
        await self._send_message(
            request, send, {"type": _START, "status": response.status, "headers": headers}
        )
        body = memoryview(response.body)
        for begin in range(0, len(body) or 1, SEND_BYTES):
            end = begin + SEND_BYTES
            more = end < len(body)
            chunk = response.body if len(body) <= SEND_BYTES else body[begin:end]
            if not await self._send_message(
                request, send, {"type": _BODY, "body": chunk, "more_body": more}
            ):
                return

    async def _send_message(self, request: HttpRequest, send: Send, message: AsgiMessage) -> bool:
        """Send a message; return False if the client stalled and the connection was aborted."""
        connection = request.connection
        if connection is not None and not connection.stalled:
            await send(message)  # does not block, so it needs no timeout
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

    async def _stream(self, request: HttpRequest, response: HttpStream, send: Send) -> int:
        """Send chunks until they end, or the client disconnects or stalls."""
        headers = self._headers(request, response.content_type, response.headers)
        await self._send_message(request, send, {"type": _START, "status": 200, "headers": headers})
        sizes = [0]  # a list, so that the size is known even if the task is cancelled
        sending = asyncio.create_task(self._send_chunks(request, response, send, sizes))
        # A tail may send nothing for a long time: only reading reports that its client is gone.
        disconnect = asyncio.create_task(request.wait_for_disconnect())
        try:
            await asyncio.wait((sending, disconnect), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, disconnect):
                task.cancel()
            for task in (sending, disconnect):
                with suppress(asyncio.CancelledError):
                    await task
        return sum(sizes)

    async def _send_chunks(
        self, request: HttpRequest, response: HttpStream, send: Send, sizes: list[int]
    ) -> None:
        chunks = response.chunks
        try:
            async for chunk in chunks:
                body = memoryview(chunk)
                for begin in range(0, len(body), SEND_BYTES):
                    part = chunk if len(body) <= SEND_BYTES else body[begin : begin + SEND_BYTES]
                    if not await self._send_message(
                        request, send, {"type": _BODY, "body": part, "more_body": True}
                    ):
                        return
                sizes[0] += len(chunk)
            await self._send_message(
                request, send, {"type": _BODY, "body": b"", "more_body": False}
            )
        finally:
            # `async for` does not close a generator that it leaves early: close it now, since it
            # holds the tail's buffer and memory.
            aclose = getattr(chunks, "aclose", None)
            if aclose is not None:
                await aclose()


class BodyAccounting:
    """Count a body as it arrives, in the memory and, for an append, the quota of its tenant.

    Args:
        service: The service.
        request: The request, whose tenant is known.
        metered: Count the bytes against the quota too.

    Raises:
        LimitExceeded: The tenant has used up its quota, so its body is not read.
    """

    def __init__(self, service: Service, request: HttpRequest, *, metered: bool) -> None:
        self._service = service
        self._request = request
        self._metered = metered
        self._declared = 0
        self._received = 0
        if metered:
            self._check_quota()
            if request.connection is not None:
                request.connection.on_discard = self.charge

    def declare(self, size: int) -> None:
        """Count the declared length of a body at once, so that it is refused before it is sent."""
        self._account(size)
        self._declared = size

    def __call__(self, size: int) -> None:
        """Count received bytes beyond the declared length."""
        self._received += size
        if (extra := self._received - self._declared) > 0:
            self._declared = self._received
            self._account(extra)

    def _account(self, size: int) -> None:
        charged_before = self._request.charged_bytes
        self._request.charged_bytes += size
        self.charge(size)
        # Other requests of the tenant may have used up the quota since the first part was checked.
        if self._metered and charged_before:
            self._check_quota()
        self._service.hold(self._request, size)

    def _check_quota(self) -> None:
        now = asyncio.get_running_loop().time()
        self._service.meter.check(self._request.tenant_id, now, self._request.charged_bytes)

    def charge(self, size: int) -> None:
        """Count bytes against the quota."""
        if self._metered:
            now = asyncio.get_running_loop().time()
            self._service.meter.charge_bytes(self._request.tenant_id, size, now)

    def end(self) -> None:
        """Refund the charge for declared bytes that were not received."""
        not_received = self._declared - self._received
        if not_received > 0:
            self._request.charged_bytes -= not_received
            self.charge(-not_received)


def _make_response(route: Route, result: Any) -> HttpResponse:
    if isinstance(result, HttpResponse):
        return result
    return HttpResponse(route.status, _encode(result))


def _check_rights(route: Route, request: HttpRequest) -> None:
    """Check that the caller has the right, tenant and event types that a route requires.

    Raises:
        Forbidden: The caller has not.
    """
    caller = request.caller
    if route.right is not None:
        caller.require(route.right, service=route.service)
    if route.all_types:
        caller.require_all_types()
    if route.every_tenant:
        _require_all_tenants(request)


def _require_all_tenants(request: HttpRequest) -> None:
    if request.caller.tenant_id != ALL_TENANTS:
        raise Forbidden("this operation concerns the whole log: it needs a token for all tenants")


def _status_of(response: HttpResponse | HttpStream) -> int:
    return 200 if isinstance(response, HttpStream) else response.status


def _find_request_id(request: HttpRequest) -> str | None:
    value = request.headers.get(b"x-request-id", b"")
    if value and len(value) <= _REQUEST_ID_MAX and value.isascii():
        text = value.decode()
        if text.isprintable() and text == text.strip():
            return text
    return None


def _is_json(content_type: bytes) -> bool:
    return content_type.split(b";", 1)[0].strip().lower() == JSON
