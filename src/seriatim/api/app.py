"""The application: finds the route, sees who calls, answers, and turns every error into a problem."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from seriatim.api.bodies import Parser
from seriatim.api.http import JSON, Gone, Headers, Receive, Request, Response, Scope, Send, Stream
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
)
from seriatim.access.rights import EVERY_TENANT
from seriatim.wire.problems import CONTENT_TYPE, problem_of

logger = logging.getLogger("seriatim.api")

STALLED_S = 60.0  # a reader that takes nothing for so long is let go
_PROBLEM = CONTENT_TYPE.encode()
_REQUEST_ID_MAX = 128
_encode = msgspec.json.Encoder().encode


class App:
    """An ASGI application over one log."""

    def __init__(self, make: Callable[[], Service]) -> None:
        self._make = make
        self._routes = {(route.method, route.path): route for route in ROUTES}
        self._paths = {route.path for route in ROUTES}
        self._parsers = {
            route.endpoint: Parser(route.body)
            for route in ROUTES
            if route.body is not None and not route.raw
        }
        self._open = {"/health": self._health, "/ready": self._ready}
        self._for_any = {"/v1/openapi.json": self._describe}
        self.service: Service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or live and end with the server."""
        if scope["type"] == "http":
            await self._serve(Request(scope, receive), send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self.service = await asyncio.to_thread(self._make)
            await self.service.start()
            _on_signals(self.service.hub.end)
        except SeriatimError as error:
            await send({"type": "lifespan.startup.failed", "message": error.message})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.service.stop()
        await send({"type": "lifespan.shutdown.complete"})

    # -- one request

    async def _serve(self, request: Request, send: Send) -> None:
        started = time.perf_counter()
        request.request_id = _request_id(request)
        try:
            answer = await self._answer(request)
        except SeriatimError as error:
            answer = _refusal(error, request)
        except (Gone, asyncio.CancelledError):
            raise
        except Exception as error:
            logger.exception("request %s failed in an unforeseen way", request.request_id)
            msg = f"the service failed in an unforeseen way ({type(error).__name__})"
            answer = _refusal(BackendFailure(msg, details={"ambiguous": True}), request)
        if isinstance(answer, Stream):
            await self._stream(request, answer, send)
            status = 200
        else:
            await self._send(request, answer, send)
            status = answer.status
        if logger.isEnabledFor(logging.INFO):
            took = (time.perf_counter() - started) * 1000
            what = request.endpoint or f"{request.method} {request.path[:100]}"
            logger.info("%s %d %.1f ms %s", what, status, took, request.request_id)

    async def _answer(self, request: Request) -> Response | Stream:
        route = self._routes.get((request.method, request.path))
        if route is None:
            return await self._other(request)
        request.endpoint = route.endpoint
        caller = await self.service.caller(request.headers.get(b"authorization"))
        request.caller = caller
        request.tenant_id = caller.tenant(request.header(b"seriatim-tenant"))
        _check_rights(route, request)
        return await self._handled(route, request)

    async def _handled(self, route: Route, request: Request) -> Response | Stream:
        service = self.service
        if route.params is not None:
            found = await route.handler(service, request, request.params(route.params))
            return found if route.stream else Response(route.status, _encode(found))
        raw = await request.body(service.serving.request_bytes, service.serving.body_timeout_s)
        if not _is_json(request.headers.get(b"content-type", b"")):
            msg = "the body is JSON: send Content-Type: application/json"
            raise InvalidArgument(msg, details={"argument": "content-type"})
        if route.raw:
            answer: Response = await route.handler(service, request, raw)
            return answer
        body = self._parsers[route.endpoint](raw)

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
        await self.service.caller(request.headers.get(b"authorization"))
        if request.path in self._for_any and request.method == "GET":
            return self._for_any[request.path]()
        if request.path in self._paths:
            msg = f"{request.method[:20]} is not for this path"
            raise InvalidArgument(msg, details={"argument": "method"})
        raise NotFound("there is no such path")

    async def _health(self) -> Response:
        return Response(200, b'{"status":"alive"}')

    async def _ready(self) -> Response:
        """Tell whether the store answers."""
        await self.service.run(self.service.log.head)
        return Response(200, b'{"status":"ready"}')

    def _describe(self) -> Response:
        return Response(200, description())

    # -- sending

    def _preflight(self, request: Request) -> Response | None:
        origin = self._allowed_origin(request)
        if request.method != "OPTIONS" or origin is None:
            return None
        headers = (
            (b"access-control-allow-methods", b"GET, POST"),
            (
                b"access-control-allow-headers",
                b"authorization, content-type, idempotency-key, last-event-id, seriatim-tenant, "
                b"x-request-id",
            ),
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
            headers += [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        return headers

    async def _send(self, request: Request, answer: Response, send: Send) -> None:
        headers = self._headers(request, answer.content_type, answer.headers)
        headers.append((b"content-length", b"%d" % len(answer.body)))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _stream(self, request: Request, answer: Stream, send: Send) -> None:
        """Send pieces until they end, the reader leaves, or takes nothing for too long."""
        headers = self._headers(request, answer.content_type, answer.headers)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sending = asyncio.create_task(_send_pieces(answer, send))
        leaving = asyncio.create_task(request.until_gone())
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            for task in (sending, leaving):
                with suppress(asyncio.CancelledError, TimeoutError):
                    await task


async def _send_pieces(answer: Stream, send: Send) -> None:
    pieces = answer.pieces
    try:
        async for piece in pieces:
            async with asyncio.timeout(STALLED_S):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        aclose = getattr(pieces, "aclose", None)
        if aclose is not None:
            await aclose()


def _check_rights(route: Route, request: Request) -> None:
    caller = request.caller
    caller.demand(route.right, service=route.service)
    if route.all_types:
        caller.demand_all_types()
    if route.every_tenant and caller.tenant_id != EVERY_TENANT:
        raise Forbidden("this is about the whole log, this token is for one tenant")


def _request_id(request: Request) -> str:
    given = request.headers.get(b"x-request-id", b"")
    if given and len(given) <= _REQUEST_ID_MAX and given.isascii():
        text = given.decode()
        if text.isprintable() and text == text.strip():
            return text
    return secrets.token_hex(12)


def _is_json(content_type: bytes) -> bool:
    return content_type.split(b";", 1)[0].strip().lower() == JSON


def _refusal(error: SeriatimError, request: Request) -> Response:
    problem = problem_of(error, request.request_id)
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
