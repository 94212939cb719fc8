"""ASGI requests and responses as plain values, with bounds on size and time."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    MutableMapping,
    Sequence,
)
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from seriatim.access.rights import Caller
from seriatim.api.connection import connection_from_scope
from seriatim.core.errors import InvalidArgument, LimitExceeded, SeriatimError, TimedOut
from seriatim.core.limits import limit_error
from seriatim.wire.problems import CONTENT_TYPE, Problem

T = TypeVar("T")
AsgiScope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]
OnChunk = Callable[[int], None]

JSON = b"application/json"
_QUERY_BYTES_MAX = 64 * 1024
_PROBLEM = CONTENT_TYPE.encode()
_DIGITS_MAX = 19  # of a content length; a longer number is over every bound


class ClientDisconnected(Exception):  # noqa: N818 - an event, no error: no response can be sent
    """The client has disconnected."""


class StatusError(Exception):
    """An error with an HTTP status and headers of its own, such as 405 with Allow."""

    def __init__(
        self, error: SeriatimError, status: int, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.status = status
        self.headers = headers


class HttpRequest:
    """One request: its head, its caller, and its body, which `body` reads."""

    __slots__ = (
        "_receive",
        "caller",
        "charged_bytes",
        "connection",
        "derived",
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
        "scheme",
        "tenant_id",
    )

    def __init__(self, scope: AsgiScope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.scheme: str = scope.get("scheme", "http")
        self.query: bytes = scope["query_string"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.peer: str = (scope.get("client") or ("",))[0]
        self.connection = connection_from_scope(scope)
        self._receive = receive
        self.held_bytes = 0  # counted in the tenant's memory
        self.charged_bytes = 0  # charged to the tenant's quota
        self.identified = False  # whether caller and tenant are known
        self.derived = False  # made by `derive`, so its headers carry no token
        self.request_id = ""
        self.endpoint = ""
        self.route = ""  # the path, if it is known
        # Set by authentication.
        self.caller: Caller
        self.tenant_id: str

    def derive(self, method: str, path: str, query: bytes = b"", body: bytes = b"") -> HttpRequest:
        """Return a request of the same caller and tenant for another route of this process."""
        headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body))]
        if b"last-event-id" in self.headers:
            headers.append((b"last-event-id", self.headers[b"last-event-id"]))
        scope: AsgiScope = {
            "method": method,
            "path": path,
            "query_string": query,
            "headers": headers,
            "client": (self.peer, 0),
        }

        async def receive() -> AsgiMessage:
            return {"type": "http.request", "body": body, "more_body": False}

        derived = HttpRequest(scope, receive)
        derived.caller, derived.tenant_id = self.caller, self.tenant_id
        derived.identified, derived.request_id = True, self.request_id
        derived.derived = True
        return derived

    @property
    def route_method(self) -> str:
        """The method of the route: HEAD uses the route of GET."""
        return "GET" if self.method == "HEAD" else self.method

    def header(self, name: bytes) -> str | None:
        """Return the value of a header, None if it is absent.

        Raises:
            InvalidArgument: It is not UTF-8.
        """
        value = self.headers.get(name)
        if value is None:
            return None
        try:
            return value.decode()
        except UnicodeDecodeError:
            msg = f"the header {name.decode()} is not UTF-8"
            raise InvalidArgument(msg, details={"argument": name.decode()}) from None

    def content_length(self) -> int:
        """Return the declared length of the body, 0 if it is absent."""
        declared = self.headers.get(b"content-length", b"").lstrip(b"0")
        return int(declared[:_DIGITS_MAX]) if declared.isdigit() else 0

    async def body(self, max_bytes: int, seconds: float, on_chunk: OnChunk) -> bytes:
        """Read the whole body.

        Args:
            max_bytes: The maximum size.
            seconds: The timeout.
            on_chunk: Called with the size of each chunk before it is kept; may raise to refuse it.

        Raises:
            LimitExceeded: The body is too large.
            TimedOut: It did not arrive in time.
            ClientDisconnected: The client has disconnected.
        """
        if (declared := self.content_length()) > max_bytes:
            raise too_large_error(declared, max_bytes)
        message = await self._next_message(seconds)
        chunk: bytes = message.get("body", b"")
        on_chunk(len(chunk))
        if message.get("more_body"):
            chunk = await self._read_rest(chunk, max_bytes, seconds, on_chunk)
        if len(chunk) > max_bytes:
            raise too_large_error(len(chunk), max_bytes)
        return chunk

    async def _read_rest(
        self, first: bytes, at_most: int, seconds: float, on_chunk: OnChunk
    ) -> bytes:
        """Read the chunks after the first one, and return the whole body."""
        # One deadline for all chunks: otherwise a client could send a byte per timeout.
        deadline = asyncio.get_running_loop().time() + seconds
        parts, size, more = [first], len(first), True
        while more:
            message = await self._next_message(deadline - asyncio.get_running_loop().time())
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > at_most:
                raise too_large_error(size, at_most)
            on_chunk(len(parts[-1]))
            more = message.get("more_body", False)
        return b"".join(parts)

    async def _next_message(self, seconds: float) -> AsgiMessage:
        message = await _receive_in_time(self._receive(), seconds)
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        return message

    async def wait_for_disconnect(self) -> None:
        """Wait until the client has disconnected."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def params(self, struct_type: type[T]) -> T:
        """Convert the query string to a struct whose fields are the parameters.

        Raises:
            InvalidArgument: It is malformed, or has an unknown or repeated parameter.
            LimitExceeded: It is too long.
        """
        if not self.query:
            return _convert({}, struct_type)
        if len(self.query) > _QUERY_BYTES_MAX:
            raise too_large_error(len(self.query), _QUERY_BYTES_MAX)
        try:
            pairs = parse_qsl(
                self.query.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=True,
                errors="strict",
            )
        except ValueError:
            raise _malformed_query_error() from None
        if any("\0" in value for _, value in pairs):  # databases refuse U+0000
            raise _malformed_query_error()
        return _convert(_group_pairs(pairs, struct_type), struct_type)


def _malformed_query_error() -> InvalidArgument:
    msg = "the query string is malformed: name=value, percent-encoded UTF-8"
    return InvalidArgument(msg, details={"argument": "query string"})


async def _receive_in_time(message: Awaitable[AsgiMessage], seconds: float) -> AsgiMessage:
    """Wait for a message.

    A message that is already there is returned without a timeout: setting one up costs more than
    reading the message, and most bodies have arrived with the head.
    """
    step = message.__await__()
    try:
        awaited = next(step)
    except StopIteration as stop:
        received: AsgiMessage = stop.value
        return received
    try:
        async with asyncio.timeout(seconds):
            return await _StartedAwaitable(step, awaited)
    except TimeoutError:
        msg = "the body of the request did not arrive in time; nothing was done"
        raise TimedOut(msg) from None


class _StartedAwaitable:
    """The rest of an awaitable whose first step has run."""

    def __init__(self, step: Generator[Any, Any, AsgiMessage], awaited: Any) -> None:
        self._step = step
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, AsgiMessage]:
        sent = yield self._awaited
        while True:
            try:
                awaited = self._step.send(sent)
            except StopIteration as stop:
                message: AsgiMessage = stop.value
                return message
            sent = yield awaited


def _group_pairs(pairs: list[tuple[str, str]], struct_type: type[Any]) -> dict[str, Any]:
    """Collect the parameters of a query string by name, with lists where the type has lists.

    Raises:
        InvalidArgument: A parameter is unknown, null, or repeated without being a list.
    """
    lists = _list_fields(struct_type)
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name not in struct_type.__struct_fields__:
            msg = f"unknown parameter {name!r:.80}"
            raise InvalidArgument(msg, details={"argument": name[:80]})
        # Lax conversion would turn this text into None.
        if value.lower() == "null" and name not in _text_fields(struct_type):
            msg = f"the parameter {name} is null: leave it out instead"
            raise InvalidArgument(msg, details={"argument": name})
        if name in lists:
            values.setdefault(name, []).append(value)
        elif name in values:
            msg = f"the parameter {name} is given twice"
            raise InvalidArgument(msg, details={"argument": name})
        else:
            values[name] = value
    return values


def _list_fields(struct_type: type[Any]) -> frozenset[str]:
    names = _LISTS.get(struct_type)
    if names is None:
        info: Any = msgspec.inspect.type_info(struct_type)
        names = frozenset(field.name for field in info.fields if _is_list(field.type))
        _LISTS[struct_type] = names
    return names


def _text_fields(struct_type: type[Any]) -> frozenset[str]:
    """Return the parameters that are text, for which "null" is an ordinary value."""
    names = _TEXT_FIELDS.get(struct_type)
    if names is None:
        info: Any = msgspec.inspect.type_info(struct_type)
        names = frozenset(field.name for field in info.fields if _is_text(field.type))
        _TEXT_FIELDS[struct_type] = names
    return names


# Each type of parameters is inspected once, not with each request.
_LISTS: dict[type[Any], frozenset[str]] = {}
_TEXT_FIELDS: dict[type[Any], frozenset[str]] = {}


def _is_text(field_type: Any) -> bool:
    texts = (msgspec.inspect.StrType, msgspec.inspect.LiteralType, msgspec.inspect.ListType)
    alternatives = getattr(field_type, "types", (field_type,))
    return any(isinstance(alternative, texts) for alternative in alternatives)


def _is_list(field_type: Any) -> bool:
    alternatives = getattr(field_type, "types", (field_type,))
    return any(isinstance(alternative, msgspec.inspect.ListType) for alternative in alternatives)


def page_bound(maximum: int) -> msgspec.Meta:
    """Describe the maximum of a parameter `limit`, for `Annotated`, in the OpenAPI document.

    The endpoint enforces it, so that the error names the argument.
    """
    return msgspec.Meta(extra_json_schema={"maximum": maximum})


def _convert(values: dict[str, Any], struct_type: type[T]) -> T:
    try:
        return msgspec.convert(values, struct_type, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_shape_error(error, "the query string") from None


def invalid_shape_error(error: Exception, where: str) -> InvalidArgument:
    """Make the error for a body or query string that does not match its type.

    Args:
        error: The error of msgspec, which contains no values.
        where: The part of the request, such as "the body".
    """
    text = str(error)
    description, _, path = text.partition(" - at ")
    argument = path.strip("`").removeprefix("$.") or _find_field_name(description) or where
    return InvalidArgument(f"{where}: {text[:300]}", details={"argument": argument[:80]})


def _find_field_name(description: str) -> str:
    parts = description.split("`")
    return parts[1] if "field" in description and len(parts) > 1 else ""


class HttpResponse(msgspec.Struct, frozen=True):
    """A complete response; duplicates of the request receive it again if it is `storable`."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    storable: bool = True


def problem_response(
    problem: Problem, error: SeriatimError, headers: tuple[tuple[bytes, bytes], ...]
) -> HttpResponse:
    """Make the response for a problem, with the headers that its status needs."""
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers = (*headers, (b"www-authenticate", b"Bearer"))
    elif problem.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        wait = error.details.get("retry_after_s", 1)
        headers = (*headers, (b"retry-after", b"%d" % max(1, round(wait + 0.499))))
    return HttpResponse(problem.status, msgspec.json.encode(problem), _PROBLEM, headers)


class HttpStream(msgspec.Struct, frozen=True):
    """A response that is sent in chunks, for as long as the client is connected."""

    content_type: bytes
    chunks: AsyncIterator[bytes]
    headers: tuple[tuple[bytes, bytes], ...] = ()


def too_large_error(actual: int, bound: int) -> LimitExceeded:
    """Make the error for a body or query string over its bound."""
    msg = f"request_bytes is {actual}, over the bound of {bound}"
    details = {"limit": "request_bytes", "bound": bound, "actual": actual}
    return LimitExceeded(msg, details=details)


# -- compression

COMPRESS_MIN_BYTES = 1024  # a smaller response fits into one packet anyway
_LEVEL = 4
_GZIP = 31  # zlib's `wbits` for a gzip header and trailer
_STEP = 256 * 1024
_FEED = 16 * 1024  # input per call: zlib copies the input that is left after a member
MEMBERS_MAX = 1024  # of one body: even an empty member takes time
_UNSUPPORTED_MEDIA_TYPE = 415
_NOT_IMPLEMENTED = 501
_COMPRESSIBLE = (JSON, b"application/problem+json", b"text/plain", b"application/openmetrics-text")


def _check_transfer_coding(request: HttpRequest) -> None:
    """Refuse transfer codings other than chunked."""
    coding = request.headers.get(b"transfer-encoding", b"").strip().lower()
    if coding in (b"", b"chunked"):
        return
    name = coding.decode("latin-1")[:40]
    error = InvalidArgument(
        f"the transfer encoding {name!r} is not supported: send content-encoding: gzip, or none",
        details={"argument": "transfer-encoding"},
    )
    raise StatusError(error, _NOT_IMPLEMENTED)


def is_gzipped(request: HttpRequest) -> bool:
    """Return whether the body of a request is gzip.

    Raises:
        StatusError: The body has another coding: 415, or 501 for a transfer coding.
    """
    _check_transfer_coding(request)
    coding = request.headers.get(b"content-encoding", b"").strip().lower()
    if coding in (b"", b"identity"):
        return False
    if coding in (b"gzip", b"x-gzip"):
        return True
    name = coding.decode("latin-1")[:40]
    error = InvalidArgument(
        f"the content encoding {name!r} is not supported: send gzip, or none",
        details={"argument": "content-encoding"},
    )
    raise StatusError(error, _UNSUPPORTED_MEDIA_TYPE, ((b"accept-encoding", b"gzip"),))


def decompress(body: bytes, max_bytes: int) -> bytes:
    """Decompress a gzip body of one or more members.

    Raises:
        LimitExceeded: It is larger than `max_bytes`, or has too many members.
        InvalidArgument: It is not valid gzip.
    """
    parts: list[bytes] = []
    size, members, reader = 0, 0, _GzipReader(body)
    try:
        while reader.has_input:  # gzip may have several members
            members += 1
            if members > MEMBERS_MAX:
                raise limit_error("gzip_members", MEMBERS_MAX, members)
            for part in reader.read_member():
                size += len(part)
                if size > max_bytes:
                    raise too_large_error(size, max_bytes)
                parts.append(part)
    except zlib.error:
        raise _invalid_gzip_error() from None
    return b"".join(parts)


class _GzipReader:
    """A gzip body, decompressed in small steps.

    zlib copies unread input at the end of every member; small steps keep that linear in the size
    of the body, also for a body of many empty members.
    """

    def __init__(self, body: bytes) -> None:
        self._body = memoryview(body)
        self._at = 0

    @property
    def has_input(self) -> bool:
        """Whether input remains."""
        return self._at < len(self._body)

    def read_member(self) -> Iterator[bytes]:
        """Yield the next member, decompressed in parts."""
        member = zlib.decompressobj(_GZIP)
        while True:
            chunk = self._body[self._at : self._at + _FEED]
            part = member.decompress(chunk, _STEP)
            # After the last member, both attributes may hold the remaining input.
            unread = member.unused_data if member.eof else member.unconsumed_tail
            self._at += len(chunk) - len(unread)
            yield part
            if member.eof:
                return
            if not part and not chunk:
                raise _invalid_gzip_error()


def _invalid_gzip_error() -> InvalidArgument:
    msg = "the body is not valid gzip, as its content-encoding states"
    return InvalidArgument(msg, details={"argument": "content-encoding"})


def accepts_gzip(accepted: bytes) -> bool:
    """Return whether the header Accept-Encoding accepts gzip."""
    qualities: dict[bytes, bool] = {}
    for item in accepted.lower().split(b","):
        name, _, quality = item.partition(b";")
        _, _, weight = quality.partition(b"=")
        qualities[name.strip()] = not weight or weight.strip().strip(b"0.") != b""
    applicable = [qualities[name] for name in (b"gzip", b"x-gzip", b"*") if name in qualities]
    return bool(applicable) and applicable[0]


def is_compressible(content_type: bytes, size: int) -> bool:
    """Return whether compression makes a response smaller."""
    return size >= COMPRESS_MIN_BYTES and content_type.split(b";", 1)[0].strip() in _COMPRESSIBLE


def compress(body: bytes) -> bytes:
    """Compress a response with gzip."""
    return gzip.compress(body, _LEVEL, mtime=0)
