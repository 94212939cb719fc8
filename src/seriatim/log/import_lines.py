"""The lines of an import file as appends: their events, their rules and their drafts."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from seriatim.core.canonical import decode_stored_json, parse_strict_json
from seriatim.core.errors import InvalidEvent, ValidationError
from seriatim.core.event import NewEvent
from seriatim.core.kinds import PROFILE_KINDS
from seriatim.core.profile_rules import LOG_PROFILE, PROFILES, ProfileRules
from seriatim.log.appender import Draft
from seriatim.log.export_format import ExportLine

# Events are imported as they were stored, whatever profile they were appended through.
IMPORT_RULES = ProfileRules(name="import", error_types=LOG_PROFILE.error_types, any_payload=True)
# Validation contexts are cached by name, so the two must not share one.
SHARED_KEY_RULES = ProfileRules(
    name="import of commands",
    error_types=LOG_PROFILE.error_types,
    any_payload=True,
    keys_are_unique=False,
)

# The fields that lines and events share, in order: after type, payload and stream, before tags.
_get_shared_fields = attrgetter(*NewEvent.__struct_fields__[3:-1])

# The lines of one append, each with its line number in the file.
NumberedLines = list[tuple[int, ExportLine]]


def has_shared_keys(append: NumberedLines) -> bool:
    """Return whether only a command can have made this append.

    A command's events may share a key, and only some of them may have one.
    """
    keys = [
        (line.producer_id, line.idempotency_key)
        for _, line in append
        if line.idempotency_key is not None
    ]
    return len(set(keys)) != len(keys) or 0 < len(keys) < len(append)


def may_be_command(append: NumberedLines) -> bool:
    """Return whether an append may be a command of a profile in which its events share a key."""
    actor_types = {
        actor_type
        for rules in PROFILES.values()
        if not rules.keys_are_unique
        for actor_type in rules.actor_types
    }
    return all(
        line.stream_type is not None
        and line.stream_type not in PROFILE_KINDS
        and line.request_id is not None
        and line.actor_type in actor_types
        for _, line in append
    )


def make_new_event(number: int, line: ExportLine) -> NewEvent:
    """Return the event of a line; raises `InvalidEvent`, with the line number, if malformed."""
    if line.event_id is None and line.idempotency_key is None:
        msg = (
            f"line {number}: an event needs an event_id or an idempotency_key, so that importing "
            "the file again does not store it twice"
        )
        raise InvalidEvent(msg, details={"line": number, "field": "event_id"})
    stream = None
    if line.stream_type is not None and line.stream_id is not None:
        stream = (line.stream_type, line.stream_id)
    elif line.stream_type is not line.stream_id:
        msg = f"line {number}: stream_type and stream_id must be given together"
        raise InvalidEvent(msg, details={"line": number, "field": "stream_id"})
    remaining_fields = (*_get_shared_fields(line), tuple(line.tags))
    return NewEvent(line.event_type, _parse_payload(number, line), stream, *remaining_fields)


def _parse_payload(number: int, line: ExportLine) -> Any:
    """Parse a payload: fast if it has a hash to be verified later, strictly if not."""
    try:
        raw = bytes(line.payload)
        return parse_strict_json(raw) if line.payload_hash is None else decode_stored_json(raw)
    except (ValidationError, ValueError) as error:
        msg = f"line {number}: the payload is not JSON ({error})"
        raise InvalidEvent(msg, details={"line": number, "field": "payload"}) from None


def make_draft(
    append: NumberedLines,
    default_tenant: str,
    rules: ProfileRules = IMPORT_RULES,
    *,
    with_events: bool = True,
) -> Draft:
    """Return the draft of an append, without conditions.

    Args:
        append: The lines of the append.
        default_tenant: The tenant of lines that name none.
        rules: The rules to validate with; those of commands replace them if events share a key.
        with_events: Whether to read the events of the lines.

    Raises:
        InvalidEvent: A line is malformed, with its number.

    """
    if rules is IMPORT_RULES and has_shared_keys(append):
        rules = SHARED_KEY_RULES
    return Draft(
        tenant_id=append[0][1].tenant_id or default_tenant,
        profile_rules=rules,
        events=[make_new_event(number, line) for number, line in append] if with_events else (),
    )
