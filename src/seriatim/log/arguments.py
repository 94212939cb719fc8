"""Validation of arguments, before any statement runs."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, TypeVar

from seriatim.core.errors import InvalidArgument
from seriatim.core.event import StreamRef
from seriatim.core.ids import id_problem, text_problem
from seriatim.core.indexes import PayloadIndex, check_payload_index
from seriatim.core.kinds import EventType, StreamKind, check_event_type, check_kind
from seriatim.core.limits import Limits
from seriatim.core.query import types_problem
from seriatim.core.request import check_stream_ref
from seriatim.core.schema import compile_schema
from seriatim.core.times import parse_us, time_problem
from seriatim.store.port import EVENT_TYPES_MAX, EventTypeRange, ReadSpec, Scope

Method = TypeVar("Method", bound=Callable[..., Any])

# Databases store positions as signed 64-bit integers.
_POSITION_END = 1 << 63


class ReadFilters(TypedDict, total=False):
    """The filters of a read by position, which `Log.read_batches` describes.

    Declared once for `page`, `read`, `read_batches` and their asyncio counterparts; their defaults
    are those of `make_read_spec`.
    """

    scope: Scope
    after: int
    until: int | None
    stream: StreamRef | None
    since_seq: int | None
    types: Sequence[str] | None
    app_id: str | None
    env_id: str | None
    occurred_after: str | None
    occurred_until: str | None
    recorded_after: str | None
    recorded_until: str | None
    correlation_id: str | None
    causation_id: str | None
    actor_id: str | None
    newest_first: bool


def make_read_spec(
    limits: Limits,
    *,
    tenant_id: str | None,
    limit: int,
    scope: Scope = "log",
    after: int = 0,
    until: int | None = None,
    stream: StreamRef | None = None,
    since_seq: int | None = None,
    types: Sequence[str] | None = None,
    app_id: str | None = None,
    env_id: str | None = None,
    occurred_after: str | None = None,
    occurred_until: str | None = None,
    recorded_after: str | None = None,
    recorded_until: str | None = None,
    correlation_id: str | None = None,
    causation_id: str | None = None,
    actor_id: str | None = None,
    newest_first: bool = False,
) -> ReadSpec:
    """Validate the arguments of a read; raises `InvalidArgument` naming the malformed one."""
    check_position("after", after)
    if until is not None and check_position("until", until) < after:
        raise invalid_argument("until", f"must not be less than after: {until} < {after}")
    # From -1: the streams of some kinds begin with the number 0.
    if since_seq is not None and (
        type(since_seq) is not int or not -1 <= since_seq < _POSITION_END
    ):
        raise invalid_argument(
            "since_seq", f"must be a whole number from -1, not {since_seq!r:.40}"
        )
    if since_seq is not None and stream is None:
        raise invalid_argument("since_seq", "needs a stream: sequence numbers belong to a stream")
    if not isinstance(newest_first, bool):
        raise invalid_argument("newest_first", f"must be true or false, not {newest_first!r:.40}")
    occurred = _parse_window("occurred", occurred_after, occurred_until)
    recorded = _parse_window("recorded", recorded_after, recorded_until)
    return ReadSpec(
        tenant_id=tenant_id,
        limit=limits.check_page("limit", limit),
        scope=scope,
        after=after,
        until=until,
        stream=None if stream is None else check_stream_ref(stream),
        after_seq=since_seq,
        types=None if types is None else _check_types(types),
        app_id=_check_text("app_id", app_id),
        env_id=_check_text("env_id", env_id),
        occurred_after_us=occurred[0],
        occurred_until_us=occurred[1],
        recorded_after_us=recorded[0],
        recorded_until_us=recorded[1],
        correlation_id=_check_text("correlation_id", correlation_id),
        causation_id=_check_text("causation_id", causation_id),
        actor_id=_check_text("actor_id", actor_id),
        newest_first=newest_first,
    )


def list_read_filters(method: Method) -> Method:
    """Decorate a method with `**filters: Unpack[ReadFilters]`: list each filter in its `help`.

    Type checkers and editors know the filters from the TypedDict, but `inspect` displays
    `**filters` alone.
    """
    signature = inspect.signature(method)
    *own, _ = signature.parameters.values()
    defaults = inspect.signature(make_read_spec).parameters
    listed = [defaults[name] for name in ReadFilters.__annotations__]
    method.__dict__["__signature__"] = signature.replace(parameters=[*own, *listed])
    return method


def make_type_range(prefix: str, after: str, limit: int) -> EventTypeRange:
    """Validate the arguments of a listing of event types; empty names do not restrict it."""
    for name, value in (("prefix", prefix), ("after", after)):
        if value != "":
            check_name(name, value)
    if type(limit) is not int or not 1 <= limit <= EVENT_TYPES_MAX:
        raise invalid_argument("limit", f"must be a whole number from 1 to {EVENT_TYPES_MAX}")
    return EventTypeRange(prefix, after, limit)


def check_position(name: str, value: object) -> int:
    """Validate a position; 0 means before the first event."""
    # `type`, because a bool is an `int`, too.
    if type(value) is not int or not 0 <= value < _POSITION_END:
        raise invalid_argument(name, f"must be a whole number from 0, not {value!r:.40}")
    return value


def check_name(name: str, value: object) -> str:
    """Validate an id or name."""
    if problem := id_problem(value):
        raise invalid_argument(name, problem)
    return str(value)


def check_timeout(timeout: object, name: str = "timeout") -> float:
    """Validate a timeout in seconds."""
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not 0 < timeout <= threading.TIMEOUT_MAX
    ):
        raise invalid_argument(name, f"must be a positive number of seconds, not {timeout!r:.40}")
    return float(timeout)


def _parse_window(name: str, after: Any, until: Any) -> tuple[int | None, int | None]:
    bounds: list[int | None] = []
    for side, text in (("after", after), ("until", until)):
        if text is not None and (problem := time_problem(text)):
            raise invalid_argument(f"{name}_{side}", problem)
        bounds.append(None if text is None else parse_us(text))
    start, end = bounds
    if start is not None and end is not None and end < start:
        problem = f"must not be before {name}_after: {until} < {after}"
        raise invalid_argument(f"{name}_until", problem)
    return start, end


def _check_types(types: Sequence[str]) -> tuple[str, ...]:
    if isinstance(types, str) or not isinstance(types, Sequence):
        raise invalid_argument("types", f"must be a list of event types, not {types!r:.40}")
    for event_type in types:
        if problem := types_problem(event_type):
            raise invalid_argument("types", problem)
    return tuple(types)


def _check_text(name: str, value: str | None) -> str | None:
    if value is not None and (problem := text_problem(value)):
        raise invalid_argument(name, problem)
    return value


def check_declaration(declaration: object) -> None:
    """Validate a declaration; raises `InvalidArgument` for any other value."""
    if isinstance(declaration, StreamKind):
        check_kind(declaration)
    elif isinstance(declaration, EventType):
        check_event_type(declaration)
        if declaration.schema is not None:
            compile_schema(declaration.schema)
    elif isinstance(declaration, PayloadIndex):
        check_payload_index(declaration)
    else:
        raise invalid_argument(
            "declarations",
            "must be StreamKind, EventType or PayloadIndex values, not "
            f"{type(declaration).__name__}",
        )


def check_count(name: str, value: object) -> int | None:
    """Validate a maximum number of records; None means no maximum."""
    if value is not None and (type(value) is not int or value < 1):
        raise invalid_argument(name, f"must be a whole number from 1, not {value!r:.40}")
    return value


def invalid_argument(argument: str, problem: str) -> InvalidArgument:
    """Return the error for a malformed argument."""
    return InvalidArgument(f"{argument} {problem}", details={"argument": argument})


def is_async(connection: object) -> bool:
    """Return whether a caller's connection is asynchronous, whatever its driver."""
    return inspect.iscoroutinefunction(getattr(connection, "execute", None))
