"""The validation rules of each profile, and its error code for each kind of problem."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from seriatim.core.errors import (
    Flaw,
    InvalidArgument,
    InvalidEvent,
    Part,
    SchemaViolation,
    SeriatimError,
)


class Door(msgspec.Struct, frozen=True, kw_only=True):
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
    codes: Mapping[Part, type[SeriatimError]]
    required: tuple[str, ...] = ()
    actor_types: tuple[str, ...] = ()
    any_payload: bool = False
    store_time_only: bool = False
    keys_are_unique: bool = True

    def error(self, problem: Flaw, index: int) -> SeriatimError:
        """Build this profile's error for a problem of the event at `index` of a batch."""
        details = {"index": index, "field": problem.where}
        return self.codes[problem.part](f"event {index}: {problem}", details=details)


_STRICT: Mapping[Part, type[SeriatimError]] = {
    "envelope": InvalidEvent,
    "json": InvalidEvent,
    "payload": InvalidEvent,
    "shape": SchemaViolation,
}

LOG = Door(name="log", codes=_STRICT)

FACTS = Door(
    name="facts",
    codes=dict.fromkeys(_STRICT, InvalidEvent),
    any_payload=True,
    store_time_only=True,
)

AGGREGATES = Door(
    name="aggregates",
    codes=_STRICT,
    required=("stream", "request_id", "actor_type", "actor_id"),
    actor_types=("user", "service_principal", "system"),
    keys_are_unique=False,
)

TRACES = Door(
    name="traces",
    codes={
        "envelope": InvalidArgument,
        "json": InvalidArgument,
        "payload": SchemaViolation,
        "shape": SchemaViolation,
    },
)
