"""The validation rules of each profile, and its error code for each kind of problem."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from seriatim.core.errors import (
    EventPart,
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


PROFILES: dict[str, ProfileRules] = {}  # by name; filled by `register_profile`


def register_profile(rules: ProfileRules) -> ProfileRules:
    """Make the rules of a profile available by its name, and return them."""
    PROFILES[rules.name] = rules
    return rules


_STRICT: Mapping[EventPart, type[SeriatimError]] = {
    "envelope": InvalidEvent,
    "json": InvalidEvent,
    "payload": InvalidEvent,
    "shape": SchemaViolation,
}

LOG_PROFILE = register_profile(ProfileRules(name="log", error_types=_STRICT))
