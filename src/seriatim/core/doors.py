"""What each door asks of an event, and which error code each kind of flaw has there."""

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
    """The rules of one profile, as data."""

    name: str
    codes: Mapping[Part, type[SeriatimError]]
    required: tuple[str, ...] = ()
    actor_types: tuple[str, ...] = ()
    any_payload: bool = False
    store_time_only: bool = False
    keys_are_unique: bool = True

    def error(self, flaw: Flaw, index: int) -> SeriatimError:
        """Give a flaw in the event at `index` the code it has at this door."""
        details = {"index": index, "field": flaw.where}
        return self.codes[flaw.part](f"event {index}: {flaw}", details=details)


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
