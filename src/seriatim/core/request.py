"""The append request that a store receives: validated events, conditions and a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from seriatim.core.canonical import canonical_text, check_json, hash_text
from seriatim.core.errors import InvalidArgument, ValidationError
from seriatim.core.event import STREAM_REF_LENGTH, EventRecord, StreamRef
from seriatim.core.guard import DEFAULT_GUARD, Guard, ScannedEvent, violation_error
from seriatim.core.ids import hash_key, id_problem, key_problem
from seriatim.core.indexes import index_keys
from seriatim.core.limits import Limits
from seriatim.core.query import Query, check_context_version, check_query
from seriatim.core.times import format_us

_SEQ_END = 1 << 63
_ENCLOSING_LEVELS = 8  # nesting levels of a request body around a payload: appends, events


class ExpectedSeq(msgspec.Struct, frozen=True):
    """Append only if the last sequence number of `stream` is `seq`.

    Attributes:
        stream: The stream, as `(type, id)`.
        seq: Its last sequence number; None means that the stream must not exist.

    Example:
        order = ("order", "8")
        log.append([NewEvent("order.placed", stream=order)], ExpectedSeq(order, None))
        log.append([NewEvent("order.paid", stream=order)], ExpectedSeq(order, 1))
    """

    stream: StreamRef
    seq: int | None


class ExpectedContext(msgspec.Struct, frozen=True):
    """Append only if the context of `query` has not changed; set either `version` or `after`.

    Attributes:
        query: The query that defines the context.
        version: The highest matching position must still be this one; None means that nothing may
            match.
        after: No matching event may have been appended after this position, which must not be
            beyond the head of the log.

    Example:
        booked = Query([Filter(types=["seat.booked"], tags=["seat:12A"])])
        event = NewEvent("seat.booked", tags=("seat:12A",))
        log.append([event], ExpectedContext(booked, after=log.query(booked).head))
    """

    query: Query
    version: int | msgspec.UnsetType | None = msgspec.UNSET
    after: int | msgspec.UnsetType = msgspec.UNSET

    def holds(self, version: int | None) -> bool:
        """Return whether the condition holds for a context of this version."""
        if self.after is msgspec.UNSET:
            return version == self.version
        return version is None or version <= self.after

    def is_reachable(self, head: int) -> bool:
        """Return whether a log with this head has reached the condition's `after`."""
        return self.after is msgspec.UNSET or self.after <= head


Condition = ExpectedSeq | ExpectedContext


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """The command that causes an append, whose response is stored with the append.

    A duplicate, with the same actor, endpoint, key and request, returns the stored response.

    Attributes:
        actor: Who sends the command.
        endpoint: The operation that it requests.
        key: The key of the command, unique per tenant, actor and endpoint.
        request: Its content, as JSON; only its hash is stored.
        response: Its response, as JSON, which duplicates receive.

    Example:
        command = Command(
            actor="u-1", endpoint="POST /orders", key="k-1", request={"sku": "a"}, response="o-1"
        )
        receipt = log.append([NewEvent("order.placed")], command=command)
        print(receipt.replayed, receipt.response)
    """

    actor: str
    endpoint: str
    key: str
    request: Any = None
    response: Any = None


class PreparedCommand(msgspec.Struct, frozen=True):
    """A validated command with its index key, the hash of its request and its response text."""

    command: Command
    command_key: bytes
    request_hash: str
    response: str


class StoredCommand(msgspec.Struct, frozen=True):
    """The stored record of a command."""

    request_hash: str
    response: str
    first_position: int
    last_position: int


# gc=False: many events are queued at once, and none is part of a reference cycle.
class PreparedEvent(msgspec.Struct, frozen=True, gc=False):
    """A validated event with the texts, hashes and index keys that are stored.

    Attributes:
        has_caller_id: Whether the caller set the event id, so that it may already be stored.
        requested_seq: The sequence number that the caller set, or None.
    """

    event_id: str
    event_key: bytes
    has_caller_id: bool
    tenant_id: str
    stream_type: str | None
    stream_id: str | None
    stream_key: bytes | None
    requested_seq: int | None
    event_type: str
    event_version: int
    occurred_at: str | None
    occurred_us: int | None
    producer_id: str | None
    source_system: str | None
    source_subsystem: str | None
    actor_type: str | None
    actor_id: str | None
    request_id: str | None
    correlation_id: str | None
    causation_id: str | None
    idempotency_key: str | None
    idempotency_index: bytes | None
    app_id: str | None
    env_id: str | None
    metadata: Mapping[str, str]
    payload: str
    payload_hash: str
    tags: tuple[str, ...]
    term_keys: tuple[bytes, ...] = ()  # keys of declared payload indexes; usually empty

    @property
    def stream(self) -> StreamRef | None:
        """The stream as `(type, id)`, or None for a fact."""
        if self.stream_type is None or self.stream_id is None:
            return None
        return self.stream_type, self.stream_id

    def index_keys(self) -> tuple[bytes, ...]:
        """Return the distinct keys of the event's tags and indexed payload values."""
        if not self.tags:
            return self.term_keys
        return index_keys(self.tenant_id, self.tags, self.term_keys)

    def to_record(
        self, position: int, append_position: int, stream_seq: int | None, recorded_us: int
    ) -> EventRecord:
        """Return the stored record of this event."""
        recorded_at = format_us(recorded_us)
        return EventRecord(
            position,
            append_position,
            self.event_id,
            self.tenant_id,
            self.stream_type,
            self.stream_id,
            stream_seq,
            self.event_type,
            self.event_version,
            self.occurred_at or recorded_at,
            recorded_at,
            self.producer_id,
            self.source_system,
            self.source_subsystem,
            self.actor_type,
            self.actor_id,
            self.request_id,
            self.correlation_id,
            self.causation_id,
            self.idempotency_key,
            self.app_id,
            self.env_id,
            self.metadata,
            self.payload,
            self.payload_hash,
            self.tags,
        )


class AppendRequest(msgspec.Struct, frozen=True, gc=False):
    """One append for a store, validated under the declarations of `rules_version`.

    Attributes:
        size: The approximate size of the events in bytes.
        encoded: A backend's own encoding of the request, made in the caller's thread.
        profile: The name of the profile whose rules the events were validated with.
    """

    tenant_id: str
    events: tuple[PreparedEvent, ...]
    conditions: tuple[Condition, ...] = ()
    command: PreparedCommand | None = None
    on_id_mismatch: Literal["error", "warn"] = "error"
    size: int = 0
    rules_version: int = 0
    encoded: Any = None
    profile: str = "log"


def check_conditions(argument: object, limits: Limits) -> tuple[Condition, ...]:
    """Validate the condition argument of an append: None, one condition or a list of them.

    Returns:
        The conditions as a tuple.

    Raises:
        InvalidArgument: A value is not a valid condition.
        InvalidQuery: The query of a condition is malformed.
        LimitExceeded: There are too many conditions or filters.
    """
    if argument is None:
        return ()
    conditions = argument if isinstance(argument, list | tuple) else (argument,)
    limits.check("conditions", len(conditions))
    limits.check("condition_filters", sum(map(_count_filters, conditions)))
    for condition in conditions:
        if isinstance(condition, ExpectedContext):
            check_query(condition.query, limits)
            _check_bound(condition)
        elif isinstance(condition, ExpectedSeq):
            check_stream_ref(condition.stream)
            seq = condition.seq
            if seq is not None and (type(seq) is not int or not 0 <= seq < _SEQ_END):
                raise _argument_error("condition.seq", "must be a whole number from 0, or None")
        else:
            raise _argument_error("condition", "must be ExpectedSeq or ExpectedContext")
    return tuple(conditions)


def _count_filters(condition: object) -> int:
    filters = getattr(getattr(condition, "query", None), "filters", None)
    return len(filters) if isinstance(filters, list | tuple) else 0


def _check_bound(condition: ExpectedContext) -> None:
    version, after = condition.version, condition.after
    if (version is msgspec.UNSET) == (after is msgspec.UNSET):
        raise _argument_error("condition", "must have either version or after")
    if after is msgspec.UNSET:
        check_context_version(version)
    elif type(after) is not int or not 0 <= after < _SEQ_END:
        raise _argument_error("after", "must be a position from 0")


def check_stream_ref(stream: object) -> StreamRef:
    """Return a valid stream reference, or raise `InvalidArgument`."""
    if not isinstance(stream, tuple) or len(stream) != STREAM_REF_LENGTH:
        raise _argument_error("stream", "must be a (stream type, stream id) pair")
    for value in stream:
        if problem := id_problem(value):
            raise _argument_error("stream", problem)
    return stream


def limits_around_payloads(limits: Limits) -> Limits:
    """Return limits that allow the deeper nesting of a request around its payloads."""
    return msgspec.structs.replace(limits, payload_depth=limits.payload_depth + _ENCLOSING_LEVELS)


def prepare_command(
    tenant_id: str, command: Command | None, limits: Limits, guard: Guard = DEFAULT_GUARD
) -> PreparedCommand | None:
    """Validate a command and compute its key, request hash and response text.

    Raises:
        InvalidArgument: A field of the command is invalid.
        LimitExceeded: The response is too large.
        PiiPolicyViolation: The guard found a secret in the response.
    """
    if command is None:
        return None
    if not isinstance(command, Command):
        raise _argument_error("command", "must be a Command")
    for field in ("actor", "endpoint"):
        if problem := id_problem(getattr(command, field)):
            raise _argument_error(f"command.{field}", problem)
    if problem := key_problem(command.key):
        raise _argument_error("command.key", problem)
    try:
        check_json(command.request, limits=limits_around_payloads(limits))
        check_json(command.response, limits=limits)
    except ValidationError as problem:
        raise _argument_error("command", str(problem)) from None
    response = canonical_text(command.response)
    limits.check("payload_bytes", len(response.encode()))
    # The request is hashed and never stored, so only the response is scanned.
    if violation := guard.scan(ScannedEvent(command.response, response)):
        raise violation_error(guard, violation, "command.response")
    return PreparedCommand(
        command,
        hash_key(tenant_id, command.actor, command.endpoint, command.key),
        hash_text(canonical_text(command.request)),
        response,
    )


def _argument_error(argument: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{argument} {problem}", details={"argument": argument})
