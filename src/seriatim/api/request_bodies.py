"""From the bytes of a body to checked values: fast when all is well, exact when it is not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET

from seriatim.api.http import invalid_shape_error
from seriatim.core.canonical import parse_strict_json
from seriatim.core.errors import InvalidArgument, InvalidEvent, ValidationError
from seriatim.core.event import NewEvent
from seriatim.core.limits import Limits
from seriatim.core.profile_rules import (
    AGGREGATES_PROFILE,
    FACTS_PROFILE,
    LOG_PROFILE,
    TRACES_PROFILE,
    ProfileRules,
)
from seriatim.core.query import Query
from seriatim.core.request import Condition, ExpectedContext, ExpectedSeq
from seriatim.wire.messages import AppendBody, WireCondition
from seriatim.wire.records import from_wire_event

RULES_BY_PROFILE: Mapping[str, ProfileRules] = {
    door.name: door for door in (LOG_PROFILE, TRACES_PROFILE, FACTS_PROFILE, AGGREGATES_PROFILE)
}
BODY_NAME = "the body"
_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_BLANKS = b" \t\r\n"
_WHOLE_BYTES = 256 * 1024  # of JSON that is read in one call, which takes about a millisecond
_LEVELS = 6  # the list of appends, an append, its events, an event, its payload
_SURROGATE = re.compile("[\ud800-\udfff]")


class BodyParser:
    """Reads bodies of one type."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind
        self._decode = msgspec.json.Decoder(kind).decode

    def __call__(self, raw: bytes) -> Any:
        """Return the body; what is no JSON at all, has a key twice or another shape is refused."""
        value = parse_json_body(raw)
        if b"\\u" in raw:
            _check_texts(value)
        try:
            return msgspec.convert(value, self.kind)
        except msgspec.ValidationError as error:
            raise invalid_shape_error(error, BODY_NAME) from None

    def parse_fast(self, raw: bytes) -> Any:
        """Return a body in which payloads are kept as they are; None if its shape is another."""
        try:
            body = self._decode(raw)
            _check_keys(raw, _LEVELS)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None
        return body


def _check_keys(raw: bytes, levels: int) -> None:
    """Refuse JSON text with a key twice in one object.

    A large text is checked member by member, down to the events of a body: each call that reads
    JSON holds the interpreter, and other requests run only between two of them.
    """
    if len(raw) <= _WHOLE_BYTES or not levels:
        if not _is_same(_write(_read(raw)), raw):
            _parsed_exactly(raw)
        return
    begin = raw.lstrip(_BLANKS)[:1]
    if begin == b"{":
        members = _members(raw)
        if not _is_same(_write(members), raw):
            _parsed_exactly(raw)
        _check_each(members.values(), levels - 1)
    elif begin == b"[":
        _check_each(_elements(raw), levels - 1)


def _check_each(values: Iterable[msgspec.Raw], levels: int) -> None:
    """Check values one by one, small ones many at a time."""
    small: list[bytes] = []
    size = 0
    for value in values:
        text = bytes(value)
        if len(text) > _WHOLE_BYTES:
            _check_keys(text, levels)
            continue
        small.append(text)
        size += len(text)
        if size > _WHOLE_BYTES:
            _check_keys(b"[%b]" % b",".join(small), 0)
            small, size = [], 0
    if small:
        _check_keys(b"[%b]" % b",".join(small), 0)


def _is_same(written: bytes, raw: bytes) -> bool:
    """Tell whether JSON that was read and written again came out as it went in, blanks apart.

    If it did, no object had a key twice: of two members only the last would have been written.
    Blanks within strings are ignored too, which leaves the structure of both texts as it is.
    """
    return written == raw or written.translate(None, _BLANKS) == raw.translate(None, _BLANKS)


def _check_texts(value: Any) -> None:
    """Refuse text that no database takes; in a query it is the query's own flaw."""
    if isinstance(value, str):
        if "\0" in value or (not value.isprintable() and _SURROGATE.search(value)):
            raise _bad(f"{BODY_NAME} has a text with U+0000 or half a surrogate pair")
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name != "query" or isinstance(inner, str):
                _check_texts(name)
                _check_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_texts(inner)


def parse_json_body(raw: bytes) -> Any:
    """Parse a body strictly: at once if it comes out as it went in, else by the exact parser."""
    with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        value = _read(raw)
        if _is_same(_write(value), raw):
            return value
    return _parsed_exactly(raw)


def _parsed_exactly(raw: bytes) -> Any:
    try:
        return parse_strict_json(raw.decode())
    except ValidationError as flaw:
        raise _bad(f"{BODY_NAME} is no JSON: {flaw.message}") from None
    except UnicodeDecodeError:
        raise _bad(f"{BODY_NAME} is no UTF-8") from None


class ParsedAppend(msgspec.Struct, frozen=True):
    """One append as it was asked for, its events ready for the log's own checks."""

    events: list[NewEvent]
    conditions: list[Condition]
    idempotency_key: str | None
    command: Any
    profile_rules: ProfileRules
    on_id_mismatch: Any


def convert_append(body: AppendBody, limits: Limits) -> ParsedAppend:
    """Take an append whose shape is right."""
    limits.check("append_events", len(body.events))
    door = RULES_BY_PROFILE[body.profile]
    events: list[NewEvent] = []
    for index, event in enumerate(body.events):
        try:
            events.append(from_wire_event(event))
        except ValidationError as flaw:
            where = "payload" if flaw.part == "json" else flaw.location
            raise door.error(ValidationError(flaw.part, where, flaw.message), index) from None
    conditions = [_condition(one) for one in body.conditions]
    return ParsedAppend(
        events, conditions, body.idempotency_key, body.command, door, body.on_id_mismatch
    )


def convert_append_strictly(value: Any, limits: Limits) -> ParsedAppend:
    """Take an append whose shape is wrong somewhere: the log's own checks say where."""
    if not isinstance(value, dict):
        raise _bad(f"{BODY_NAME} is an object with events")
    rest = {name: inner for name, inner in value.items() if name != "events"}
    try:
        body = msgspec.convert({**rest, "events": []}, _Loose)
    except msgspec.ValidationError as error:
        raise invalid_shape_error(error, BODY_NAME) from None
    except UnicodeEncodeError:
        raise _bad(f"{BODY_NAME} has a field whose name is no text") from None
    given = value.get("events")
    if not isinstance(given, list):
        raise _bad("events must be a list of events", "events")
    limits.check("append_events", len(given))
    door = RULES_BY_PROFILE[body.profile]
    events = [_event(one, index, door) for index, one in enumerate(given)]
    conditions = [_condition(one) for one in body.conditions]
    return ParsedAppend(
        events, conditions, body.idempotency_key, body.command, door, body.on_id_mismatch
    )


class _LooseCondition(WireCondition, forbid_unknown_fields=True):
    query: dict[str, Any] | None = None  # type: ignore[assignment]


class _Loose(AppendBody, forbid_unknown_fields=True):
    events: list[Any]
    conditions: list[_LooseCondition] = msgspec.field(default_factory=list)  # type: ignore[assignment]


def _event(given: Any, index: int, door: ProfileRules) -> NewEvent:
    try:
        if not isinstance(given, dict):
            raise InvalidEvent("an event is an object", details={"field": "$"})  # noqa: TRY301
        return NewEvent.from_mapping(given)
    except InvalidEvent as error:
        flaw = ValidationError("envelope", error.details["field"], error.message)
        raise door.error(flaw, index) from None


def _condition(given: WireCondition) -> Condition:
    if (given.stream is None) == (given.query is None):
        raise _bad("a condition names a stream or a query", "conditions")
    if given.stream is not None:
        if given.version not in (None, UNSET) or given.after is not UNSET:
            raise _bad("a stream has a seq, a query has a version or after", "conditions")
        return ExpectedSeq(given.stream, given.seq)
    if given.seq is not None:
        raise _bad("a stream has a seq, a query has a version or after", "conditions")
    query = parse_query(given.query)
    if given.version is UNSET and given.after is UNSET:
        return ExpectedContext(query, None)
    return ExpectedContext(query, given.version, given.after)


def parse_query(given: Any) -> Query:
    """Return a query that came as JSON text, or as its value."""
    value = parse_json_body(bytes(given)) if isinstance(given, msgspec.Raw) else given
    return Query.from_mapping(value)


def _bad(message: str, argument: str = BODY_NAME) -> InvalidArgument:
    return InvalidArgument(message, details={"argument": argument})
