"""Requests and answers of ASGI, as plain values with bounds on everything."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    MutableMapping,
    Sequence,
)
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from seriatim.access.rights import Caller
from seriatim.api.connection import connection_from_scope
from seriatim.core.errors import InvalidArgument, LimitExceeded, SeriatimError, TimedOut
from seriatim.wire.problems import CONTENT_TYPE, Problem

AsgiScope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]
OnChunk = Callable[[int], None]

JSON = b"application/json"
_QUERY_BYTES_MAX = 64 * 1024
_PROBLEM = CONTENT_TYPE.encode()
_DIGITS_MAX = 19  # of a length: more of them are too many in any case


class ClientDisconnected(Exception):  # noqa: N818 - nobody waits for an answer any more
    """The client has left."""


class StatusError(Exception):
    """An error whose status and headers are those of HTTP itself, such as 405 with Allow."""

    def __init__(
        self, error: SeriatimError, status: int, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.status = status
        self.headers = headers


class HttpRequest:
    """One request: what its head says, and its body once it is asked for."""

    __slots__ = (
        "_receive",
        "caller",
        "charged_bytes",
        "connection",
        "endpoint",
        "headers",
        "held_bytes",
        "identified",
        "method",
        "path",
        "peer",
        "query",
        "request_id",
        "route",
        "tenant_id",
    )

    def __init__(self, scope: AsgiScope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.peer: str = (scope.get("client") or ("",))[0]
        self.connection = connection_from_scope(scope)
        self._receive = receive
        self.held_bytes = 0  # bytes that count against the tenant's memory
        self.charged_bytes = 0  # bytes that count against the tenant's quota
        self.identified = False  # whether caller and tenant are known
        self.request_id = ""
        self.endpoint = ""
        self.route = ""  # its path, if there is one
        # Set once the token was seen; nothing before that asks for them.
        self.caller: Caller
        self.tenant_id: str

    @property
    def route_method(self) -> str:
        """The method by which a route is found: HEAD is GET without a body."""
        return "GET" if self.method == "HEAD" else self.method

    def header(self, name: bytes) -> str | None:
        """Return a header's text, None when it is not there."""
        value = self.headers.get(name)
        if value is None:
            return None
        try:
            return value.decode()
        except UnicodeDecodeError:
            msg = f"the header {name.decode()} is not UTF-8"
            raise InvalidArgument(msg, details={"argument": name.decode()}) from None

    def content_length(self) -> int:
        """Return how long the body is, as the head tells; 0 when it does not."""
        told = self.headers.get(b"content-length", b"").lstrip(b"0")
        return int(told[:_DIGITS_MAX]) if told.isdigit() else 0

    async def body(self, max_bytes: int, seconds: float, arrived: OnChunk) -> bytes:
        """Read the body whole, within bounds of size and time.

        `arrived` is called with the size of each piece before it is kept, and may refuse it.
        """
        if (told := self.content_length()) > max_bytes:
            raise too_large_error(told, max_bytes)
        message = await self._next(seconds)
        chunk: bytes = message.get("body", b"")
        arrived(len(chunk))
        if message.get("more_body"):
            chunk = await self._rest(chunk, max_bytes, seconds, arrived)
        if len(chunk) > max_bytes:
            raise too_large_error(len(chunk), max_bytes)
        return chunk

    async def _rest(self, first: bytes, at_most: int, seconds: float, arrived: OnChunk) -> bytes:
        until = asyncio.get_running_loop().time() + seconds
        parts, size, more = [first], len(first), True
        while more:
            message = await self._next(until - asyncio.get_running_loop().time())
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > at_most:
                raise too_large_error(size, at_most)
            arrived(len(parts[-1]))
            more = message.get("more_body", False)
        return b"".join(parts)

    async def _next(self, seconds: float) -> AsgiMessage:
        message = await _in_time(self._receive(), seconds)
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        return message

    async def wait_for_disconnect(self) -> None:
        """Wait until the client has left."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def params(self, kind: type[Any]) -> Any:
        """Return the query string as a value of a type that names every parameter."""
        if not self.query:
            return _converted({}, kind)
        if len(self.query) > _QUERY_BYTES_MAX:
            raise too_large_error(len(self.query), _QUERY_BYTES_MAX)
        try:
            pairs = parse_qsl(
                self.query.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=True,
                errors="strict",
            )
            if any("\0" in value for _, value in pairs):
                raise ValueError  # noqa: TRY301 - no database takes it
        except ValueError:
            msg = "the query string is malformed: name=value, percent-encoded UTF-8"
            raise InvalidArgument(msg, details={"argument": "query string"}) from None
        return _converted(_gathered(pairs, kind), kind)


async def _in_time(coming: Awaitable[AsgiMessage], seconds: float) -> AsgiMessage:
    """Wait for a message; one that is there already is not timed, which costs more than it."""
    step = coming.__await__()
    try:
        waits_for = next(step)
    except StopIteration as there:
        found: AsgiMessage = there.value
        return found
    try:
        async with asyncio.timeout(seconds):
            return await _Rest(step, waits_for)
    except TimeoutError:
        msg = "the body of the request did not come in time; nothing was done"
        raise TimedOut(msg) from None


class _Rest:
    """An awaitable that was begun already."""

    def __init__(self, step: Generator[Any, Any, AsgiMessage], waits_for: Any) -> None:
        self._step = step
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, AsgiMessage]:
        sent = yield self._waits_for
        while True:
            try:
                waits_for = self._step.send(sent)
            except StopIteration as there:
                found: AsgiMessage = there.value
                return found
            sent = yield waits_for


def _gathered(pairs: list[tuple[str, str]], kind: type[Any]) -> dict[str, Any]:
    lists = _list_fields(kind)
    given: dict[str, Any] = {}
    for name, value in pairs:
        if name not in kind.__struct_fields__:
            msg = f"there is no parameter {name!r:.80} here"
            raise InvalidArgument(msg, details={"argument": name[:80]})
        if value.lower() == "null" and name not in _text_fields(kind):
            msg = f"the parameter {name} is null: leave it out instead"
            raise InvalidArgument(msg, details={"argument": name})
        if name in lists:
            given.setdefault(name, []).append(value)
        elif name in given:
            msg = f"the parameter {name} stands there twice"
            raise InvalidArgument(msg, details={"argument": name})
        else:
            given[name] = value
    return given


def _list_fields(kind: type[Any]) -> frozenset[str]:
    known = _LISTS.get(kind)
    if known is None:
        info: Any = msgspec.inspect.type_info(kind)
        known = frozenset(field.name for field in info.fields if _is_list(field.type))
        _LISTS[kind] = known
    return known


def _text_fields(kind: type[Any]) -> frozenset[str]:
    """Return the parameters that are text, for which null is a word as any other."""
    known = _TEXTS.get(kind)
    if known is None:
        info: Any = msgspec.inspect.type_info(kind)
        known = frozenset(field.name for field in info.fields if _is_text(field.type))
        _TEXTS[kind] = known
    return known


_LISTS: dict[type[Any], frozenset[str]] = {}
_TEXTS: dict[type[Any], frozenset[str]] = {}


def _is_text(kind: Any) -> bool:
    texts = (msgspec.inspect.StrType, msgspec.inspect.LiteralType, msgspec.inspect.ListType)
    return any(isinstance(one, texts) for one in getattr(kind, "types", (kind,)))


def _is_list(kind: Any) -> bool:
    inner = getattr(kind, "types", (kind,))
    return any(isinstance(one, msgspec.inspect.ListType) for one in inner)


def _converted(given: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_shape_error(error, "the query string") from None


def invalid_shape_error(error: Exception, where: str) -> InvalidArgument:
    """Make the error for what does not have the shape that a route takes; no value is shown."""
    said = str(error)
    words, _, path = said.partition(" - at ")
    argument = path.strip("`").removeprefix("$.") or _named(words) or where
    return InvalidArgument(f"{where}: {said[:300]}", details={"argument": argument[:80]})


def _named(words: str) -> str:
    parts = words.split("`")
    return parts[1] if "field" in words and len(parts) > 1 else ""


class HttpResponse(msgspec.Struct, frozen=True):
    """An answer that is there as a whole; one that does not last is not kept for twins."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    storable: bool = True


def problem_response(
    problem: Problem, error: SeriatimError, headers: tuple[tuple[bytes, bytes], ...]
) -> HttpResponse:
    """Make the answer of a problem, with the headers that its status needs."""
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers = (*headers, (b"www-authenticate", b"Bearer"))
    elif problem.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        wait = error.details.get("retry_after_s", 1)
        headers = (*headers, (b"retry-after", b"%d" % max(1, round(wait + 0.499))))
    return HttpResponse(problem.status, msgspec.json.encode(problem), _PROBLEM, headers)


class HttpStream(msgspec.Struct, frozen=True):
    """An answer that comes in pieces, for as long as the client stays."""

    content_type: bytes
    pieces: AsyncIterator[bytes]
    headers: tuple[tuple[bytes, bytes], ...] = ()


def too_large_error(actual: int, bound: int) -> LimitExceeded:
    """Make the error for a body or query string over its bound."""
    msg = f"request_bytes is {actual}, over the bound of {bound}"
    details = {"limit": "request_bytes", "bound": bound, "actual": actual}
    return LimitExceeded(msg, details=details)
