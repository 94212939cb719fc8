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
from typing import Any

import msgspec

from seriatim.access.rights import EVERY_TENANT
from seriatim.api.bodies import Parser
from seriatim.api.http import JSON, Gone, Headers, Receive, Request, Response, Scope, Send, Stream
from seriatim.api.observing import Observer, spanned
from seriatim.api.openapi import description
from seriatim.api.repeating import once
from seriatim.api.routes import ROUTES, Route
from seriatim.api.service import Service
from seriatim.core.errors import (
    BackendFailure,
    Forbidden,
    InvalidArgument,
    NotFound,
    SeriatimError,
    TimedOut,
)
from seriatim.core.limits import MIB
from seriatim.telemetry import tracing
from seriatim.telemetry.logs import bind
from seriatim.wire.problems import CONTENT_TYPE, Problem

logger = logging.getLogger("seriatim.api")

OTHER_BYTES = 4 * MIB  # of a body that appends nothing
STALLED_S = 60.0  # a reader that takes nothing for so long is let go
_PROBLEM = CONTENT_TYPE.encode()
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
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._make = make
        self._around = around
        self._log_requests = log_requests
        self._ids = map((secrets.token_hex(8) + "%08x").__mod__, itertools.count())
        self._routes = {(route.method, route.path): route for route in routes}
        self._paths = {route.path for route in routes}
        self._parsers = {
            route.endpoint: Parser(route.body)
            for route in routes
            if route.body is not None and not route.raw
        }
        self._open = {"/health": self._health, "/ready": self._ready}
        self._for_any = {"/v1/openapi.json": self._describe, "/metrics": self._metrics}
        self.service: Service
        self.observer: Observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or live and end with the server."""
        if scope["type"] == "http":
            await self._serve(Request(scope, receive), send)
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
            self.observer = Observer(self.service, log_requests=self._log_requests)
            _on_signals(self.service.hub.end)
        except SeriatimError as error:
            await send({"type": "lifespan.startup.failed", "message": error.message})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.observer.close()
        await self.service.stop()
        await send({"type": "lifespan.shutdown.complete"})

    # -- one request

    async def _serve(self, request: Request, send: Send) -> None:
        started = time.perf_counter()
        request.request_id = _given_id(request) or next(self._ids)
        route = self._routes.get((request.method, request.path))
        request.endpoint = "" if route is None else route.endpoint
        bind(request.request_id)
        if tracing.active():
            with spanned(request) as span:
                answer = await self._answered(request, route)
                span.set({"http.response.status_code": _status(answer)})
        else:
            answer = await self._answered(request, route)
        if isinstance(answer, Stream):
            with self.observer.tail():
                size = await self._stream(request, answer, send)
        else:
            size = len(answer.body)
            await self._send(request, answer, send)
        took = time.perf_counter() - started
        self.observer.answered(request, _status(answer), took, size)

    async def _answered(self, request: Request, route: Route | None) -> Response | Stream:
        """Return the answer to a request; every error is one."""
        try:
            return await self._answer(request, route)
        except SeriatimError as error:
            return self._refusal(error, request)
        except Gone:
            return Response(499)
        except asyncio.CancelledError:  # the server's time to end is over: this is the last word
            msg = "the service ended before this was done; it may have been done"
            return self._refusal(BackendFailure(msg, details={"ambiguous": True}), request)
        except Exception as error:
            logger.exception("a request failed in an unforeseen way")
            msg = f"the service failed in an unforeseen way ({type(error).__name__})"
            return self._refusal(BackendFailure(msg, details={"ambiguous": True}), request)

    def _refusal(self, error: SeriatimError, request: Request) -> Response:
        return _refused(self.service.problem(error, request.request_id), error)

    async def _answer(self, request: Request, route: Route | None) -> Response | Stream:
        if route is None:
            return await self._other(request)
        caller = await self.service.caller(request.headers)
        request.caller = caller
        request.tenant_id = caller.tenant(request.header(b"seriatim-tenant"))
        _check_rights(route, request)
        return await self._handled(route, request)

    async def _handled(self, route: Route, request: Request) -> Response | Stream:
        service = self.service
        if route.params is not None:
            found = await route.handler(service, request, request.params(route.params))
            return found if route.stream else Response(route.status, _encode(found))
        serving = service.serving
        bound = serving.request_bytes if route.raw else min(serving.request_bytes, OTHER_BYTES)
        raw = await request.body(bound, serving.body_timeout_s)
        if not _is_json(request.headers.get(b"content-type", b"")):
            msg = "the body is JSON: send Content-Type: application/json"
            raise InvalidArgument(msg, details={"argument": "content-type"})
        if route.raw:
            answer: Response = await route.handler(service, request, raw)
            return answer
        read = partial(self._parsers[route.endpoint], raw)
        body = await service.at_its_size(request.tenant_id, len(raw), read)
        if route.stream:
            pieces: Stream = await route.handler(service, request, body)
            return pieces

        async def act() -> Response:
            return Response(route.status, _encode(await route.handler(service, request, body)))

        if route.writes and b"idempotency-key" in request.headers:
            return await once(service, request, raw, act)
        return await act()

    # -- what is no route of the log

    async def _other(self, request: Request) -> Response:
        if request.path in self._open and request.method in ("GET", "HEAD"):
            return await self._open[request.path]()
        if preflight := self._preflight(request):
            return preflight
        request.caller = await self.service.caller(request.headers)
        if request.path in self._for_any and request.method == "GET":
            return await self._for_any[request.path](request)
        if request.path in self._paths:
            msg = f"{request.method[:20]} is not for this path"
            raise InvalidArgument(msg, details={"argument": "method"})
        raise NotFound("there is no such path")

    async def _health(self) -> Response:
        return Response(200, b'{"status":"alive"}')

    async def _ready(self) -> Response:
        """Tell whether the store answers; anybody may ask, so nothing of it is told."""
        try:
            await self.service.run(self.service.log.head)
        except TimedOut:
            raise TimedOut("the log's store does not answer in time") from None
        except SeriatimError:
            raise BackendFailure("the log's store does not answer") from None
        return Response(200, b'{"status":"ready"}')

    async def _describe(self, _: Request) -> Response:
        return Response(200, description())

    async def _metrics(self, request: Request) -> Response:
        """Show metrics: their labels name tenants, so only who operates for all may see them."""
        request.caller.demand("operate", service=True)
        _check_for_all(request)
        accept = request.headers.get(b"accept", b"").decode("latin-1")
        return await self.service.run(self.observer.exposition, accept)

    # -- sending

    def _preflight(self, request: Request) -> Response | None:
        origin = self._allowed_origin(request)
        if request.method != "OPTIONS" or origin is None:
            return None
        headers = (
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", _CORS_HEADERS),
            (b"access-control-max-age", b"600"),
        )
        return Response(204, b"", headers=headers)

    def _allowed_origin(self, request: Request) -> bytes | None:
        origin = request.headers.get(b"origin")
        allowed = self.service.serving.cors_origins
        return origin if origin and origin.decode("latin-1") in allowed else None

    def _headers(self, request: Request, content_type: bytes, more: Headers) -> list[Any]:
        headers = [
            (b"content-type", content_type),
            (b"x-request-id", request.request_id.encode()),
            *more,
        ]
        if self.service.serving.cors_origins and (origin := self._allowed_origin(request)):
            headers += [
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", b"retry-after, seriatim-replayed, x-request-id"),
                (b"vary", b"origin"),
            ]
        return headers

    async def _send(self, request: Request, answer: Response, send: Send) -> None:
        headers = self._headers(request, answer.content_type, answer.headers)
        headers.append((b"content-length", b"%d" % len(answer.body)))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _stream(self, request: Request, answer: Stream, send: Send) -> int:
        """Send pieces until they end, the reader leaves, or takes nothing for too long."""
        headers = self._headers(request, answer.content_type, answer.headers)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sizes = [0]
        sending = asyncio.create_task(_send_pieces(answer, send, sizes))
        leaving = asyncio.create_task(request.until_gone())
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            for task in (sending, leaving):
                with suppress(asyncio.CancelledError, TimeoutError):
                    await task
        return sum(sizes)


async def _send_pieces(answer: Stream, send: Send, sizes: list[int]) -> None:
    pieces = answer.pieces
    try:
        async for piece in pieces:
            async with asyncio.timeout(STALLED_S):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            sizes[0] += len(piece)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        aclose = getattr(pieces, "aclose", None)
        if aclose is not None:
            await aclose()


def _check_rights(route: Route, request: Request) -> None:
    caller = request.caller
    if route.right is not None:
        caller.demand(route.right, service=route.service)
    if route.all_types:
        caller.demand_all_types()
    if route.every_tenant:
        _check_for_all(request)


def _check_for_all(request: Request) -> None:
    if request.caller.tenant_id != EVERY_TENANT:
        raise Forbidden("this is about the whole log, this token is for one tenant")


def _status(answer: Response | Stream) -> int:
    return 200 if isinstance(answer, Stream) else answer.status


def _given_id(request: Request) -> str | None:
    given = request.headers.get(b"x-request-id", b"")
    if given and len(given) <= _REQUEST_ID_MAX and given.isascii():
        text = given.decode()
        if text.isprintable() and text == text.strip():
            return text
    return None


def _is_json(content_type: bytes) -> bool:
    return content_type.split(b";", 1)[0].strip().lower() == JSON


def _refused(problem: Problem, error: SeriatimError) -> Response:
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if problem.status == 401:  # noqa: PLR2004
        headers = ((b"www-authenticate", b"Bearer"),)
    elif problem.status in (429, 503):
        wait = error.details.get("retry_after_s", 1)
        headers = ((b"retry-after", b"%d" % max(1, round(wait + 0.499))),)
    return Response(problem.status, _encode(problem), _PROBLEM, headers)


def _on_signals(act: Callable[[], None]) -> None:
    """Let tails end when the process is told to: the server waits for open answers first."""
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)

        def both(got: int, frame: Any, before: Any = before) -> None:
            loop.call_soon_threadsafe(act)
            if callable(before):
                before(got, frame)

        signal.signal(number, both)
