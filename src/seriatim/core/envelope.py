"""Validation of an event's envelope: ids, numbers, times, actors, tags and metadata."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from seriatim.core.errors import InvalidArgument, ValidationError
from seriatim.core.event import (
    ENVELOPE_TEXTS,
    INFRASTRUCTURE_TENANT,
    STREAM_REF_LENGTH,
    NewEvent,
)
from seriatim.core.ids import id_problem, text_problem
from seriatim.core.kinds import PROFILE_KINDS, ProfileKind, Rules, StreamKind
from seriatim.core.limits import Limits
from seriatim.core.profile_rules import ProfileRules
from seriatim.core.times import time_problem

_INT32 = 1 << 31
_INT63 = 1 << 63

_TEXTS = tuple(name for name in ENVELOPE_TEXTS if name != "idempotency_key")  # has its own check
_get_texts = attrgetter(*_TEXTS)
_NO_TEXTS = (None,) * len(_TEXTS)


def check_envelope(
    event: NewEvent,
    key: str | None,
    profile_rules: ProfileRules,
    tenant_id: str,
    rules: Rules,
    limits: Limits,
    *,
    known_kind: StreamKind | None = None,
) -> ProfileKind | None:
    """Validate one envelope and return the profile's kind that its stream has, if any.

    Args:
        event: The event to validate.
        key: Its idempotency key.
        profile_rules: The rules of the profile that it is appended with.
        tenant_id: The tenant of the append.
        rules: The declarations of the log.
        limits: The bounds on tags and metadata.
        known_kind: The kind of its stream, if the same event type, version and stream type were
            validated before in another event and need no second check.

    Raises:
        ValidationError: A field is missing or invalid.
        InvalidArgument: The event belongs to another tenant.
        LimitExceeded: It has too many or too long tags or metadata.
    """
    if known_kind is None and (problem := id_problem(event.event_type)):
        raise ValidationError("envelope", "event_type", problem)
    if event.tenant_id is not None and event.tenant_id != tenant_id:
        msg = "tenant_id differs from the tenant of this append: append to each tenant separately"
        raise InvalidArgument(msg, details={"argument": "tenant_id"})
    profile_kind = _check_stream(event, tenant_id, rules, known_kind)
    if event.event_id is not None and (problem := id_problem(event.event_id)):
        raise ValidationError("envelope", "event_id", problem)
    if known_kind is None:
        _check_number(event.event_version, "event_version", 1, _INT32)
    # Hot path: most events leave these fields empty, so compare all of them at once first.
    if _get_texts(event) != _NO_TEXTS:
        _check_texts(event)
    if event.occurred_at is not None:
        _check_time(event, profile_rules)
    if profile_kind is not None or profile_rules.required or profile_rules.actor_types:
        _check_required(event, key, profile_rules, profile_kind)
    if event.tags != ():
        _check_tags(event.tags, limits)
    if event.metadata != {}:
        _check_metadata(event.metadata, limits)
    return profile_kind


def _check_texts(event: NewEvent) -> None:
    for name, value in zip(_TEXTS, _get_texts(event), strict=True):
        if value is not None and (problem := text_problem(value)):
            raise ValidationError("envelope", name, problem)


def _check_stream(
    event: NewEvent, tenant_id: str, rules: Rules, kind: StreamKind | None
) -> ProfileKind | None:
    stream: Any = event.stream
    if stream is None:
        if event.stream_seq is not None:
            raise ValidationError("envelope", "stream_seq", "requires a stream")
        return None
    if kind is None:
        if not isinstance(stream, tuple) or len(stream) != STREAM_REF_LENGTH:
            raise ValidationError("envelope", "stream", "must be a (stream type, stream id) pair")
        if problem := id_problem(stream[0]):
            raise ValidationError("envelope", "stream_type", problem)
        kind = rules.kind_of(stream[0])
    if problem := id_problem(stream[1]):
        raise ValidationError("envelope", "stream_id", problem)
    if kind.infrastructure and tenant_id != INFRASTRUCTURE_TENANT:
        msg = f"{stream[0]!r} is infrastructure: it belongs to tenant {INFRASTRUCTURE_TENANT!r}"
        raise InvalidArgument(msg, details={"argument": "tenant_id"})
    if event.stream_seq is not None:
        _check_number(event.stream_seq, "stream_seq", 0, _INT63)
    elif kind.numbered_by == "caller":
        raise ValidationError("envelope", "stream_seq", f"is required in {stream[0]!r} streams")
    return PROFILE_KINDS.get(stream[0])


def _check_number(value: object, name: str, minimum: int, end: int) -> None:
    if type(value) is not int or not minimum <= value < end:
        problem = f"must be a whole number from {minimum} to {end - 1}"
        raise ValidationError("envelope", name, problem)


def _check_time(event: NewEvent, profile_rules: ProfileRules) -> None:
    if profile_rules.log_sets_time:
        raise ValidationError("envelope", "occurred_at", "is set only by the log")
    if problem := time_problem(event.occurred_at):
        raise ValidationError("envelope", "occurred_at", problem)


def _check_required(
    event: NewEvent, key: str | None, profile_rules: ProfileRules, profile_kind: ProfileKind | None
) -> None:
    required, allowed = profile_rules.required, profile_rules.actor_types
    if profile_kind is not None:
        required, allowed = (*required, *profile_kind.required), profile_kind.actor_types
    for name in required:
        if getattr(event, name) in (None, ""):
            raise ValidationError("envelope", name, "is required")
    if key is None and profile_kind is not None and profile_kind.key_required:
        raise ValidationError("envelope", "idempotency_key", "is required")
    if allowed and event.actor_type not in allowed:
        raise ValidationError("envelope", "actor_type", f"must be one of {', '.join(allowed)}")


def _check_tags(tags: Any, limits: Limits) -> None:
    if not isinstance(tags, tuple | list):
        raise ValidationError("envelope", "tags", "must be a list of strings")
    limits.check("tags", len(tags))
    for index, tag in enumerate(tags):
        if type(tag) is str:
            # Replaced, because `text_problem` reports lone surrogates better than `encode`.
            limits.check("tag_bytes", len(tag.encode(errors="replace")))
        if problem := text_problem(tag):
            raise ValidationError("envelope", f"tags[{index}]", problem)


def _check_metadata(metadata: Any, limits: Limits) -> None:
    if not hasattr(metadata, "items"):
        raise ValidationError("envelope", "metadata", "must be a mapping of strings")
    limits.check("metadata_entries", len(metadata))
    size = 0
    for name, value in metadata.items():
        for text in (name, value):
            if problem := text_problem(text):
                raise ValidationError("envelope", "metadata", problem)
            size += len(text.encode())
    limits.check("metadata_bytes", size)
