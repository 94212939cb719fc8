"""The validation rules of each profile, and its error code for each kind of problem."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from seriatim.core.errors import (
    EventPart,
    InvalidArgument,
    InvalidEvent,
    SchemaViolation,
    SeriatimError,
    ValidationError,
)


class ProfileRules(msgspec.Struct, frozen=True, kw_only=True):
    """The validation rules of one profile, as data.

    Attributes:
        name: The name of the profile.
        error_types: The error class for each part of an event that can be invalid.
        required: The envelope fields that must be set.
        actor_types: The allowed actor types; empty allows any.
        any_payload: Whether a payload may be any JSON value instead of an object.
        log_sets_time: Whether `occurred_at` is reserved for the log.
        keys_are_unique: Whether idempotency keys of events are unique per producer. In the
            aggregates profile all events of a command share its key.
    """

    name: str
    error_types: Mapping[EventPart, type[SeriatimError]]
    required: tuple[str, ...] = ()
    actor_types: tuple[str, ...] = ()
    any_payload: bool = False
    log_sets_time: bool = False
    keys_are_unique: bool = True

    def error(self, problem: ValidationError, index: int) -> SeriatimError:
        """Build this profile's error for a problem of the event at `index` of a batch."""
        details = {"index": index, "field": problem.location}
        return self.error_types[problem.part](f"event {index}: {problem}", details=details)


_STRICT: Mapping[EventPart, type[SeriatimError]] = {
    "envelope": InvalidEvent,
    "json": InvalidEvent,
    "payload": InvalidEvent,
    "shape": SchemaViolation,
}

LOG_PROFILE = ProfileRules(name="log", error_types=_STRICT)

FACTS_PROFILE = ProfileRules(
    name="facts",
    error_types=dict.fromkeys(_STRICT, InvalidEvent),
    any_payload=True,
    log_sets_time=True,
)

AGGREGATES_PROFILE = ProfileRules(
    name="aggregates",
    error_types=_STRICT,
    required=("stream", "request_id", "actor_type", "actor_id"),
    actor_types=("user", "service_principal", "system"),
    keys_are_unique=False,
)

TRACES_PROFILE = ProfileRules(
    name="traces",
    error_types={
        "envelope": InvalidArgument,
        "json": InvalidArgument,
        "payload": SchemaViolation,
        "shape": SchemaViolation,
    },
)
