"""The first step of an append: all validation that does not depend on the log's content.

The order of the checks decides which error is reported for an event with several problems:
idempotency key and envelope, JSON, the payload's schema, size, then the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from seriatim.core.canonical import check_and_encode, hash_text
from seriatim.core.envelope import check_envelope
from seriatim.core.errors import (
    EmptyAppend,
    InvalidArgument,
    InvalidEvent,
    LimitExceeded,
    PiiPolicyViolation,
    ValidationError,
)
from seriatim.core.event import ENVELOPE_TEXTS, STREAM_REF_LENGTH, NewEvent
from seriatim.core.guard import (
    DEFAULT_GUARD,
    Guard,
    ScannedEvent,
    find_first_violation,
    violation_error,
)
from seriatim.core.ids import event_key, idempotency_index_key, key_problem, stream_key
from seriatim.core.indexes import term_keys
from seriatim.core.kinds import (
    DEFAULT_STREAM_KIND,
    NO_RULES,
    ProfileKind,
    Rules,
    StreamKind,
    closed_catalogue,
)
from seriatim.core.limits import DEFAULT_LIMITS, Limits
from seriatim.core.profile_rules import LOG_PROFILE, ProfileRules
from seriatim.core.request import PreparedEvent
from seriatim.core.times import parse_us

_VALIDATED_KINDS_MAX = 4096
_ENVELOPE_BYTES = 256  # approximate size of an event without its payload

# A guard scans every stored text; types and tenants are scanned once, at first use.
_GUARDED = ("event_id", *(name for name in ENVELOPE_TEXTS if name != "idempotency_key"))
_get_guarded = attrgetter(*_GUARDED)
_NO_GUARDED = (None,) * len(_GUARDED)


# The guard of an event, and the parts of the event that it scans.
Scan = tuple[Guard, ScannedEvent]


class ValidationContext(msgspec.Struct, frozen=True, kw_only=True):
    """The rules and settings that the events of an append are validated with."""

    tenant_id: str
    new_id: Callable[[], str]
    profile_rules: ProfileRules = LOG_PROFILE
    rules: Rules = NO_RULES
    guard: Guard = DEFAULT_GUARD
    limits: Limits = DEFAULT_LIMITS
    validators: Mapping[tuple[str, int], Callable[[Any], None]] = {}
    # Cache: the stream kind of each (event type, version, stream type) that passed its checks.
    validated_kinds: dict[tuple[str, int, str | None], StreamKind] = msgspec.field(
        default_factory=dict
    )


def prepare(
    context: ValidationContext,
    events: Iterable[NewEvent | Mapping[str, Any]],
    idempotency_key: str | None = None,
    scan: Callable[[list[Scan]], None] | None = None,
) -> tuple[tuple[PreparedEvent, ...], int]:
    """Validate a batch of events and return it ready to store.

    Args:
        context: The rules and settings to validate with.
        events: The events of the append, as `NewEvent` objects or mappings.
        idempotency_key: A key for the whole append; its events get `key/0`, `key/1` and so on.
        scan: Takes what the guards must scan before the append is stored, to scan it later with
            `scan_events`; without it, all is scanned here.

    Returns:
        The prepared events, and their approximate size in bytes.

    Raises:
        EmptyAppend: There are no events.
        SeriatimError: The first problem that was found, with the index of its event.
    """
    batch = _to_new_events(context, events)
    if not batch:
        raise EmptyAppend
    if len(batch) > context.limits.append_events:
        context.limits.check("append_events", len(batch))
    keys = [event.idempotency_key for event in batch]
    if idempotency_key is not None:
        keys = _assign_keys(keys, idempotency_key)
    prepared: list[PreparedEvent] = []
    scans: list[Scan] = []
    bytes_in_all = 0
    for index, (event, key) in enumerate(zip(batch, keys, strict=True)):
        try:
            text, size, event_scan = _check_event(context, event, key)
            scans.append(event_scan)
            prepared.append(_build_prepared_event(context, event, key, text))
        except (ValidationError, LimitExceeded, PiiPolicyViolation) as problem:
            scan_events(scans)  # a violation of an event before this one is reported first
            if isinstance(problem, ValidationError):
                raise context.profile_rules.error(problem, index) from None
            problem.details["index"] = index
            raise
        bytes_in_all += size + _ENVELOPE_BYTES
    if scan is None:
        scan_events(scans)
    else:
        scan(scans)
    if bytes_in_all > context.limits.append_bytes:
        context.limits.check("append_bytes", bytes_in_all)
    if len(prepared) > 1:
        _check_no_duplicates(context, prepared)
    return tuple(prepared), bytes_in_all


def prepare_each(
    appends: Iterable[tuple[ValidationContext, Iterable[NewEvent | Mapping[str, Any]]]],
) -> list[tuple[tuple[PreparedEvent, ...], int]]:
    """Validate several appends as `prepare` does; the guard scans their events together.

    Raises:
        SeriatimError: One of them is invalid; `prepare` finds which, and the error to report.
    """
    scans: list[Scan] = []
    prepared = [prepare(context, events, None, scans.extend) for context, events in appends]
    scan_events(scans)
    return prepared


def _to_new_events(
    context: ValidationContext, events: Iterable[NewEvent | Mapping[str, Any]]
) -> list[NewEvent]:
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
        if not isinstance(event, Mapping):
            problem = ValidationError("envelope", "$", "must be a NewEvent or a mapping")
            raise context.profile_rules.error(problem, index)
        try:
            batch.append(NewEvent.from_mapping(event))
        except InvalidEvent as error:
            problem = ValidationError("envelope", error.details["field"], error.message)
            raise context.profile_rules.error(problem, index) from None
    return batch


def _assign_keys(own_keys: list[str | None], append_key: str) -> list[str | None]:
    """Return the keys `k/0`, `k/1`, … of the events of an append with the key `k`."""
    if any(key is not None for key in own_keys):
        msg = "pass one idempotency key for the append or a key for each event, not both"
        raise InvalidArgument(msg, details={"argument": "idempotency_key"})
    if problem := key_problem(append_key) or key_problem(f"{append_key}/{len(own_keys) - 1}"):
        msg = f"idempotency_key {problem}"
        raise InvalidArgument(msg, details={"argument": "idempotency_key"})
    return [f"{append_key}/{index}" for index in range(len(own_keys))]


def _check_event(
    context: ValidationContext, event: NewEvent, key: str | None
) -> tuple[str, int, Scan]:
    """Check one event; return its payload as text, the size of that, and what the guard scans."""
    if key is not None and (problem := key_problem(key)):
        raise ValidationError("envelope", "idempotency_key", problem)
    kind = _find_validated_kind(context, event)
    profile_kind = check_envelope(
        event,
        key,
        context.profile_rules,
        context.tenant_id,
        context.rules,
        context.limits,
        known_kind=kind,
    )
    payload = event.payload
    floats = profile_kind is None or profile_kind.floats
    text = check_and_encode(payload, floats=floats, limits=context.limits)
    if not context.profile_rules.any_payload and not isinstance(payload, dict):
        raise ValidationError("payload", "payload", "must be a JSON object")
    if profile_kind is None:
        if kind is None:
            _check_catalogue(context, event)
        if context.validators:
            _check_schema(context, event)
    else:
        profile_kind.check_payload(event.event_type, payload)
    # Hot path, here and for `append_bytes`: `check` is called only to raise.
    if (size := _count_bytes(text)) > context.limits.payload_bytes:
        context.limits.check("payload_bytes", size)
    return text, size, _list_scanned(context.guard, event, key, text, profile_kind)


def scan_events(scans: Sequence[Scan]) -> None:
    """Let the guards scan events.

    Raises:
        PiiPolicyViolation: For the first event that its guard rejects, with its index.
    """
    if len(scans) == 1 and not scans[0][0].scan(scans[0][1]):
        return  # the usual case, without further calls
    if found := find_first_violation(scans):
        index, guard, violation = found
        error = violation_error(guard, violation)
        error.details["index"] = index
        raise error


def _find_validated_kind(context: ValidationContext, event: NewEvent) -> StreamKind | None:
    """Return the stream kind of an event whose type, version and stream type passed before."""
    event_type, version = event.event_type, event.event_version
    stream: Any = event.stream  # not validated yet
    if type(event_type) is not str or type(version) is not int:
        return None
    if stream is None:
        return context.validated_kinds.get((event_type, version, None))
    if type(stream) is not tuple or len(stream) != STREAM_REF_LENGTH or type(stream[0]) is not str:
        return None
    return context.validated_kinds.get((event_type, version, stream[0]))


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _check_schema(context: ValidationContext, event: NewEvent) -> None:
    validate = context.validators.get((event.event_type, event.event_version))
    if validate is not None:
        validate(event.payload)


def _check_catalogue(context: ValidationContext, event: NewEvent) -> None:
    """Check an event's type against the declarations, and cache the stream kind if it passes."""
    versions = context.rules.versions_of(event.event_type)
    if versions and event.event_version not in versions:
        raise ValidationError("shape", "event_version", f"is not declared for {event.event_type!r}")
    stream_type = None if event.stream is None else event.stream[0]
    kind = DEFAULT_STREAM_KIND if stream_type is None else context.rules.kind_of(stream_type)
    if (
        stream_type is not None
        and kind.catalogue == "closed"
        and event.event_type not in closed_catalogue(context.rules, kind)
    ):
        raise ValidationError(
            "shape", "event_type", f"is not in the closed catalogue of {kind.name!r}"
        )
    _check_names(context, event, stream_type)
    if len(context.validated_kinds) >= _VALIDATED_KINDS_MAX:
        context.validated_kinds.clear()  # bounds the memory when types are generated
    context.validated_kinds[event.event_type, event.event_version, stream_type] = kind


def _list_scanned(
    guard: Guard, event: NewEvent, key: str | None, text: str, profile_kind: ProfileKind | None
) -> Scan:
    """Return the guard of an event and the parts of the event that it scans."""
    if profile_kind is not None:
        guard = profile_kind.guard
        fields = _guarded_fields(event, key, profile_kind.guarded_fields)
    # Hot path: building the pairs costs as much as a scan, and most events have none of them.
    elif _get_guarded(event) == _NO_GUARDED and key is None:
        fields = () if event.stream is None else (("stream_id", event.stream[1]),)
    else:
        fields = _guarded_fields(event, key, _GUARDED)
        if event.stream is not None:
            fields = (("stream_id", event.stream[1]), *fields)
    return guard, ScannedEvent(event.payload, text, fields, event.tags, event.metadata)


def _guarded_fields(
    event: NewEvent, key: str | None, names: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    pairs = [(name, value) for name in names if (value := getattr(event, name)) is not None]
    if key is not None:
        pairs.append(("idempotency_key", key))
    return tuple(pairs)


def _check_names(context: ValidationContext, event: NewEvent, stream_type: str | None) -> None:
    """Scan the names that many events share: event type, tenant and stream type."""
    fields = [("event_type", event.event_type), ("tenant_id", context.tenant_id)]
    if stream_type is not None:
        fields.append(("stream_type", stream_type))
    violation = context.guard.scan(ScannedEvent(None, "null", tuple(fields)))
    if violation is not None:
        raise violation_error(context.guard, violation)


def _build_prepared_event(
    context: ValidationContext, event: NewEvent, key: str | None, text: str
) -> PreparedEvent:
    event_id = event.event_id or context.new_id()
    stream_type, stream_id = event.stream or (None, None)
    tenant = context.tenant_id
    indexed = key is not None and context.profile_rules.keys_are_unique
    paths = context.rules.indexed_paths.get(event.event_type)
    terms = term_keys(tenant, event.event_type, paths, text) if paths else ()
    if terms:
        context.limits.check("index_terms", len(terms))
    return PreparedEvent(
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
        None if event.occurred_at is None else parse_us(event.occurred_at),
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
        hash_text(text),
        tuple(event.tags),
        terms,
    )


def _check_no_duplicates(context: ValidationContext, prepared: list[PreparedEvent]) -> None:
    """Check that ids and keys are unique in a batch, and that all events have a key or none."""
    ids: set[str] = set()
    keys: set[bytes] = set()
    keyed = sum(event.idempotency_index is not None for event in prepared)
    for index, event in enumerate(prepared):
        if event.event_id in ids:
            problem = ValidationError("envelope", "event_id", "appears twice in one batch")
            raise context.profile_rules.error(problem, index)
        ids.add(event.event_id)
        if event.idempotency_index is None:
            if keyed:
                message = "is missing: set a key on every event of a batch or on none"
                raise context.profile_rules.error(
                    ValidationError("envelope", "idempotency_key", message), index
                )
        elif event.idempotency_index in keys:
            problem = ValidationError("envelope", "idempotency_key", "appears twice in one batch")
            raise context.profile_rules.error(problem, index)
        else:
            keys.add(event.idempotency_index)
