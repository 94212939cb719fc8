"""The first half of an append: every check that needs nothing but the event itself.

The order decides which error a doubly wrong event gets: idempotency key and envelope, JSON safety,
shape for its type, guard, then the canonical text and its hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

import msgspec

from seriatim.core.canonical import safe_text, text_hash
from seriatim.core.doors import LOG, Door
from seriatim.core.envelope import check_envelope
from seriatim.core.errors import (
    EmptyAppend,
    Flaw,
    InvalidArgument,
    InvalidEvent,
    LimitExceeded,
    PiiPolicyViolation,
)
from seriatim.core.event import NewEvent
from seriatim.core.guard import DEFAULT, TRACES_V1, Guard, Scanned, refusal
from seriatim.core.ids import event_key, idempotency_index_key, key_problem, stream_key
from seriatim.core.indexes import term_keys
from seriatim.core.kinds import AGGREGATE, NO_RULES, Rules, StreamKind, closed_catalogue
from seriatim.core.limits import DEFAULT_LIMITS, Limits
from seriatim.core.request import Prepared
from seriatim.core.times import instant_us
from seriatim.core.trace_shapes import check_trace_payload

_KNOWN_MAX = 4096
_ENVELOPE_BYTES = 256  # what an event costs beside its payload, roughly


# What the frozen policy of traces scans around a payload (T2).
_TRACE_GUARDED = (
    "producer_id",
    "actor_type",
    "actor_id",
    "source_system",
    "source_subsystem",
    "correlation_id",
    "causation_id",
)
# Every other guard scans all that is stored; types and tenants once, when they are first seen.
_GUARDED = ("event_id", *_TRACE_GUARDED, "request_id", "app_id", "env_id")
_guarded_of = attrgetter(*_GUARDED)
_UNGUARDED = (None,) * len(_GUARDED)


class Desk(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the checks of one append depend on, besides its events."""

    tenant_id: str
    new_id: Callable[[], str]
    door: Door = LOG
    rules: Rules = NO_RULES
    guard: Guard = DEFAULT
    limits: Limits = DEFAULT_LIMITS
    validators: Mapping[tuple[str, int], Callable[[Any], None]] = {}
    # The kinds of (event type, version, stream type) that passed every check of these three.
    known: dict[tuple[str, int, str | None], StreamKind] = msgspec.field(default_factory=dict)


def prepare(
    desk: Desk, events: Iterable[NewEvent | Mapping[str, Any]], idempotency_key: str | None = None
) -> tuple[tuple[Prepared, ...], int]:
    """Check a batch and return it ready to store, with its size; the first flaw is reported."""
    batch = _as_new_events(desk, events)
    if not batch:
        raise EmptyAppend
    if len(batch) > desk.limits.append_events:
        desk.limits.check("append_events", len(batch))
    keys = _keys(batch, idempotency_key)
    prepared: list[Prepared] = []
    size = 0
    for index, (event, key) in enumerate(zip(batch, keys, strict=True)):
        try:
            ready = _prepare_one(desk, event, key)
        except Flaw as flaw:
            raise desk.door.error(flaw, index) from None
        except (LimitExceeded, PiiPolicyViolation) as error:
            error.details["index"] = index
            raise
        size += _byte_count(ready.payload) + _ENVELOPE_BYTES
        prepared.append(ready)
    if size > desk.limits.append_bytes:
        desk.limits.check("append_bytes", size)
    if len(prepared) > 1:
        _check_no_twins(desk, prepared)
    return tuple(prepared), size


def _as_new_events(desk: Desk, events: Iterable[NewEvent | Mapping[str, Any]]) -> list[NewEvent]:
    if type(events) is not list and (
        isinstance(events, (NewEvent, Mapping, str)) or not isinstance(events, Iterable)
    ):
        msg = "events must be a list of events"
        raise InvalidArgument(msg, details={"argument": "events"})
    batch: list[NewEvent] = []
    for index, event in enumerate(events):
        if type(event) is NewEvent:
            batch.append(event)
            continue
        try:
            if not isinstance(event, Mapping):
                raise InvalidEvent("an event is a NewEvent or a mapping", details={"field": "$"})  # noqa: TRY301
            batch.append(NewEvent.from_mapping(event))
        except InvalidEvent as error:
            flaw = Flaw("envelope", error.details["field"], error.message)
            raise desk.door.error(flaw, index) from None
    return batch


def _keys(batch: list[NewEvent], whole: str | None) -> list[str | None]:
    """Give each event its key: its own, or k/0, k/1, … of a key for the whole append."""
    own = [event.idempotency_key for event in batch]
    if whole is None:
        return own
    if any(key is not None for key in own):
        msg = "give a key for the whole append or keys for its events, not both"
        raise InvalidArgument(msg, details={"argument": "idempotency_key"})
    if problem := key_problem(whole) or key_problem(f"{whole}/{len(batch) - 1}"):
        msg = f"idempotency_key {problem}"
        raise InvalidArgument(msg, details={"argument": "idempotency_key"})
    return [f"{whole}/{index}" for index in range(len(batch))]


def _prepare_one(desk: Desk, event: NewEvent, key: str | None) -> Prepared:
    if key is not None and (problem := key_problem(key)):
        raise Flaw("envelope", "idempotency_key", problem)
    kind = _known_kind(desk, event)
    is_trace = check_envelope(event, key, desk.door, desk.tenant_id, desk.rules, desk.limits, kind)
    payload = event.payload
    text = safe_text(payload, floats=not is_trace, limits=desk.limits)
    if not desk.door.any_payload and not isinstance(payload, dict):
        raise Flaw("payload", "payload", "must be a JSON object")
    _check_shape(desk, event, is_trace, known=kind is not None)
    if (size := _byte_count(text)) > desk.limits.payload_bytes:
        desk.limits.check("payload_bytes", size)
    _check_guard(desk.guard, event, key, text, is_trace=is_trace)
    return _prepared(desk, event, key, text)


def _known_kind(desk: Desk, event: NewEvent) -> StreamKind | None:
    """Return the kind of an event whose type, version and stream type are known to be good."""
    event_type, version = event.event_type, event.event_version
    stream: Any = event.stream  # not checked yet
    if type(event_type) is not str or type(version) is not int:
        return None
    if stream is None:
        return desk.known.get((event_type, version, None))
    if type(stream) is not tuple or len(stream) != 2 or type(stream[0]) is not str:  # noqa: PLR2004
        return None
    return desk.known.get((event_type, version, stream[0]))


def _byte_count(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _check_shape(desk: Desk, event: NewEvent, is_trace: bool, *, known: bool) -> None:
    if is_trace:
        check_trace_payload(event.event_type, event.payload)
        return
    if not known:
        _check_catalogue(desk, event)
    if desk.validators:
        validate = desk.validators.get((event.event_type, event.event_version))
        if validate is not None:
            validate(event.payload)


def _check_catalogue(desk: Desk, event: NewEvent) -> None:
    """Check an event's type against the declarations, and remember what passed."""
    versions = desk.rules.versions_of(event.event_type)
    if versions and event.event_version not in versions:
        raise Flaw("shape", "event_version", f"is not declared for {event.event_type!r}")
    stream_type = None if event.stream is None else event.stream[0]
    kind = AGGREGATE if stream_type is None else desk.rules.kind_of(stream_type)
    if (
        stream_type is not None
        and kind.catalogue == "closed"
        and event.event_type not in closed_catalogue(desk.rules, kind)
    ):
        raise Flaw("shape", "event_type", f"is not in the closed catalogue of {kind.name!r}")
    _check_names(desk, event, stream_type)
    if len(desk.known) >= _KNOWN_MAX:
        desk.known.clear()
    desk.known[event.event_type, event.event_version, stream_type] = kind


def _check_guard(
    guard: Guard, event: NewEvent, key: str | None, text: str, *, is_trace: bool
) -> None:
    if is_trace:
        guard, fields = TRACES_V1, _guarded(event, key, _TRACE_GUARDED)
    # Making the pairs costs as much as a scan: most events have none of these fields.
    elif _guarded_of(event) == _UNGUARDED and key is None:
        fields = () if event.stream is None else (("stream_id", event.stream[1]),)
    else:
        fields = _guarded(event, key, _GUARDED)
        if event.stream is not None:
            fields = (("stream_id", event.stream[1]), *fields)
    found = guard.scan(Scanned(event.payload, text, fields, event.tags, event.metadata))
    if found is not None:
        raise refusal(guard, found)


def _guarded(
    event: NewEvent, key: str | None, names: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    pairs = [(name, value) for name in names if (value := getattr(event, name)) is not None]
    if key is not None:
        pairs.append(("idempotency_key", key))
    return tuple(pairs)


def _check_names(desk: Desk, event: NewEvent, stream_type: str | None) -> None:
    """Scan the names that many events share, when they are first seen."""
    named = [("event_type", event.event_type), ("tenant_id", desk.tenant_id)]
    if stream_type is not None:
        named.append(("stream_type", stream_type))
    found = desk.guard.scan(Scanned(None, "null", tuple(named)))
    if found is not None:
        raise refusal(desk.guard, found)


def _prepared(desk: Desk, event: NewEvent, key: str | None, text: str) -> Prepared:
    event_id = event.event_id or desk.new_id()
    stream_type, stream_id = event.stream or (None, None)
    tenant = desk.tenant_id
    indexed = key is not None and desk.door.keys_are_unique
    paths = desk.rules.indexed_paths.get(event.event_type)
    terms = term_keys(tenant, event.event_type, paths, text) if paths else ()
    if terms:
        desk.limits.check("index_terms", len(terms))
    return Prepared(
        event_id,
        event_key(event_id),
        event.event_id is not None,
        tenant,
        stream_type,
        stream_id,
        stream_key(tenant, stream_type, stream_id) if stream_type and stream_id else None,
        event.stream_seq,
        event.event_type,
        event.event_version,
        event.occurred_at,
        None if event.occurred_at is None else instant_us(event.occurred_at),
        event.producer_id,
        event.source_system,
        event.source_subsystem,
        event.actor_type,
        event.actor_id,
        event.request_id,
        event.correlation_id,
        event.causation_id,
        key,
        idempotency_index_key(tenant, event.producer_id, key) if indexed and key else None,
        event.app_id,
        event.env_id,
        dict(event.metadata),
        text,
        text_hash(text),
        tuple(event.tags),
        terms,
    )


def _check_no_twins(desk: Desk, prepared: list[Prepared]) -> None:
    """Within one batch: all events have a key or none, and no key and no event id stands twice."""
    ids: set[str] = set()
    keys: set[bytes] = set()
    keyed = sum(event.idempotency_index is not None for event in prepared)
    for index, event in enumerate(prepared):
        if event.event_id in ids:
            raise desk.door.error(Flaw("envelope", "event_id", "stands twice in one batch"), index)
        ids.add(event.event_id)
        if event.idempotency_index is None:
            if keyed:
                flaw = Flaw("envelope", "idempotency_key", "every event has a key, or none has")
                raise desk.door.error(flaw, index)
        elif event.idempotency_index in keys:
            flaw = Flaw("envelope", "idempotency_key", "stands twice in one batch")
            raise desk.door.error(flaw, index)
        else:
            keys.add(event.idempotency_index)
