"""What travels from a caller to a store: checked events, conditions, and their command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from seriatim.core.canonical import canonical_text, check_json, text_hash
from seriatim.core.errors import Flaw, InvalidArgument
from seriatim.core.event import EventRecord, StreamRef
from seriatim.core.guard import DEFAULT, Guard, Scanned, refusal
from seriatim.core.ids import hash_key, id_problem, key_problem
from seriatim.core.indexes import index_keys
from seriatim.core.limits import Limits
from seriatim.core.query import Query, check_query, check_version
from seriatim.core.times import format_us

_SEQ_END = 1 << 63
_AROUND = 8  # levels: a body, its appends, their events


class ExpectedSeq(msgspec.Struct, frozen=True):
    """The append holds only if the stream's last number is `seq`; None: it must not exist."""

    stream: StreamRef
    seq: int | None


class ExpectedContext(msgspec.Struct, frozen=True):
    """The append holds only if the context of `query` has not changed; give one of two bounds.

    `version`: it is still the highest position that matches (None: nothing matches). `after`:
    nothing that matches was appended after this position, which the log has reached.

        log.append(events, ExpectedContext(query, after=log.query(query).head))
    """

    query: Query
    version: int | msgspec.UnsetType | None = msgspec.UNSET
    after: int | msgspec.UnsetType = msgspec.UNSET

    def holds(self, version: int | None) -> bool:
        """Tell whether the condition holds for a context of this version."""
        if self.after is msgspec.UNSET:
            return version == self.version
        return version is None or version <= self.after

    def within(self, head: int) -> bool:
        """Tell whether a log that ends at `head` has reached what the condition is about."""
        return self.after is msgspec.UNSET or self.after <= head


Condition = ExpectedSeq | ExpectedContext


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """The command behind an append: its twins get the stored response instead of running again."""

    actor: str
    endpoint: str
    key: str
    request: Any = None
    response: Any = None


class PreparedCommand(msgspec.Struct, frozen=True):
    """A command with the key, the hash and the text under which it is stored."""

    command: Command
    command_key: bytes
    request_hash: str
    response: str


class StoredCommand(msgspec.Struct, frozen=True):
    """What the store remembers of a command."""

    request_hash: str
    response: str
    first_position: int
    last_position: int


class Prepared(msgspec.Struct, frozen=True, gc=False):  # many wait at once, in no cycle
    """An event that passed every check, with the texts, hashes and index keys it is stored under.

    `given_id` tells a caller's event id, which may be known already, from one made for this append.
    """

    event_id: str
    event_key: bytes
    given_id: bool
    tenant_id: str
    stream_type: str | None
    stream_id: str | None
    stream_key: bytes | None
    given_seq: int | None
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
    term_keys: tuple[bytes, ...] = ()  # of declared payload indexes, so nearly always none

    @property
    def stream(self) -> StreamRef | None:
        """The stream as `(type, id)`, or None for a plain fact."""
        if self.stream_type is None or self.stream_id is None:
            return None
        return self.stream_type, self.stream_id

    def index_keys(self) -> tuple[bytes, ...]:
        """Return the keys, each once, under which the event is found: its tags' and its terms'."""
        if not self.tags:
            return self.term_keys
        return index_keys(self.tenant_id, self.tags, self.term_keys)

    def record(
        self, position: int, append_position: int, stream_seq: int | None, recorded_us: int
    ) -> EventRecord:
        """Return the record this event became."""
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


class Request(msgspec.Struct, frozen=True, gc=False):
    """One append on its way to a store, checked under the rules of `rules_version`."""

    tenant_id: str
    events: tuple[Prepared, ...]
    conditions: tuple[Condition, ...] = ()
    command: PreparedCommand | None = None
    on_id_mismatch: Literal["error", "warn"] = "error"
    size: int = 0
    rules_version: int = 0
    packed: Any = None  # the backend's own form, made in the caller's thread
    door: str = "log"  # under whose rules it was checked


def check_conditions(given: object, limits: Limits) -> tuple[Condition, ...]:
    """Return the conditions of an append, none, one or several, after checking their shape."""
    conditions = given if isinstance(given, list | tuple) else () if given is None else (given,)
    limits.check("conditions", len(conditions))
    limits.check("condition_filters", sum(map(_filter_count, conditions)))
    for condition in conditions:
        if isinstance(condition, ExpectedContext):
            check_query(condition.query, limits)
            _check_bound(condition)
        elif isinstance(condition, ExpectedSeq):
            check_stream(condition.stream)
            seq = condition.seq
            if seq is not None and (type(seq) is not int or not 0 <= seq < _SEQ_END):
                raise _bad("condition.seq", "must be a whole number from 0, or None")
        else:
            raise _bad("condition", "must be ExpectedSeq or ExpectedContext")
    return tuple(conditions)


def _filter_count(condition: object) -> int:
    filters = getattr(getattr(condition, "query", None), "filters", None)
    return len(filters) if isinstance(filters, list | tuple) else 0


def _check_bound(condition: ExpectedContext) -> None:
    version, after = condition.version, condition.after
    if (version is msgspec.UNSET) == (after is msgspec.UNSET):
        raise _bad("condition", "takes a version or after: give one of them")
    if after is msgspec.UNSET:
        check_version(version)
    elif type(after) is not int or not 0 <= after < _SEQ_END:
        raise _bad("after", "must be a position from 0")


def check_stream(stream: object) -> StreamRef:
    """Return a stream reference that a caller named, or refuse it."""
    if not isinstance(stream, tuple) or len(stream) != 2:  # noqa: PLR2004
        raise _bad("stream", "must be a (stream type, stream id) pair")
    for value in stream:
        if problem := id_problem(value):
            raise _bad("stream", problem)
    return stream


def around_payloads(limits: Limits) -> Limits:
    """Return the bounds of a request that has payloads somewhere inside it."""
    return msgspec.structs.replace(limits, payload_depth=limits.payload_depth + _AROUND)


def prepare_command(
    tenant_id: str, command: Command | None, limits: Limits, guard: Guard = DEFAULT
) -> PreparedCommand | None:
    """Check a command and compute what it is stored under."""
    if command is None:
        return None
    if not isinstance(command, Command):
        raise _bad("command", "must be a Command")
    for field in ("actor", "endpoint"):
        if problem := id_problem(getattr(command, field)):
            raise _bad(f"command.{field}", problem)
    if problem := key_problem(command.key):
        raise _bad("command.key", problem)
    try:
        check_json(command.request, limits=around_payloads(limits))
        check_json(command.response, limits=limits)
    except Flaw as flaw:
        raise _bad("command", str(flaw)) from None
    response = canonical_text(command.response)
    limits.check("payload_bytes", len(response))
    if found := guard.scan(Scanned(command.response, response)):  # the request is only hashed
        raise refusal(guard, found, "command.response")
    return PreparedCommand(
        command,
        hash_key(tenant_id, command.actor, command.endpoint, command.key),
        text_hash(canonical_text(command.request)),
        response,
    )


def _bad(argument: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{argument} {problem}", details={"argument": argument})
