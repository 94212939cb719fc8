"""Parsing of request bodies: once, and with exact errors for those that do not match their type."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from seriatim.api.http import invalid_shape_error
from seriatim.core.canonical import parse_strict_json
from seriatim.core.errors import InvalidArgument, InvalidEvent, ValidationError
from seriatim.core.event import NewEvent
from seriatim.core.limits import Limits
from seriatim.core.profile_rules import PROFILES, ProfileRules
from seriatim.core.query import Query
from seriatim.core.request import Condition, ExpectedContext, ExpectedSeq
from seriatim.wire.messages import AppendBody, AppendIfBody, WireCondition
from seriatim.wire.records import WireEvent, from_wire_event

BODY_NAME = "the body"
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_BLANKS = b" \t\r\n"
_WHOLE_BYTES = 256 * 1024  # of JSON parsed in one call, which takes about a millisecond
_LEVELS = 6  # nesting of a body with several appends, down to the members of payloads
_SURROGATE = re.compile("[\ud800-\udfff]")


class BodyParser:
    """Parse bodies of one type.

    Args:
        kind: The struct that a body is converted to.
    """

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind

    def __call__(self, raw: bytes) -> Any:
        """Parse a body strictly.

        Raises:
            InvalidArgument: It is not JSON, repeats a key, or does not match the type.
        """
        value = parse_json_body(raw)
        if b"\\u" in raw:
            _check_texts(value)
        try:
            return msgspec.convert(value, self.kind)
        except msgspec.ValidationError as error:
            raise invalid_shape_error(error, BODY_NAME) from None

    def match(self, value: Any) -> Any:
        """Convert a parsed body, whose payloads are used as they are.

        Returns:
            None if it does not match the type: the caller then finds the error.
        """
        try:
            return msgspec.convert(value, self.kind)
        except (msgspec.ValidationError, UnicodeError):
            return None


def _is_unchanged(encoded: bytes, raw: bytes) -> bool:
    """Return whether JSON is unchanged, except for blanks, after decoding and encoding.

    If so, no object repeats a key: decoding keeps only the last of two members. Ignoring blanks
    within strings too is safe, since it does not change the structure of either text.
    """
    return encoded == raw or encoded.translate(None, _BLANKS) == raw.translate(None, _BLANKS)


def _check_texts(value: Any) -> None:
    """Refuse text that databases cannot store; queries report it with an error of their own."""
    if isinstance(value, str):
        if "\0" in value or (not value.isprintable() and _SURROGATE.search(value)):
            raise _body_error(f"{BODY_NAME} contains U+0000 or an unpaired surrogate")
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name != "query" or isinstance(inner, str):
                _check_texts(name)
                _check_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_texts(inner)


def parse_json_body(raw: bytes) -> Any:
    """Parse JSON strictly, with the slower exact parser only if msgspec changes the text.

    Raises:
        InvalidArgument: It is not JSON, or repeats a key.
    """
    try:
        return _parse_value(raw, _LEVELS)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _parse_exactly(raw)  # names the error, or accepts an unpaired surrogate


def _parse_value(raw: bytes, levels: int) -> Any:
    """Parse JSON text in which no object repeats a key.

    A large text is parsed member by member, down to the events of a body: each call of the JSON
    parser holds the interpreter lock, and other requests run only between two calls.
    """
    first = raw.lstrip(_BLANKS)[:1] if len(raw) > _WHOLE_BYTES and levels else b""
    if first == b"{":
        members = _decode_members(raw)
        if not _is_unchanged(_encode(members), raw):
            return _parse_exactly(raw)
        return dict(zip(members, _parse_each(members.values(), levels - 1), strict=True))
    if first == b"[":
        return _parse_each(_decode_elements(raw), levels - 1)
    value = _decode_any(raw)
    return value if _is_unchanged(_encode(value), raw) else _parse_exactly(raw)


def _parse_each(values: Iterable[msgspec.Raw], levels: int) -> list[Any]:
    """Parse values one by one, and small ones in groups."""
    parsed: list[Any] = []
    small: list[bytes] = []
    size = 0
    for value in values:
        text = bytes(value)
        if small and size + len(text) > _WHOLE_BYTES:
            parsed += _parse_value(b"[%b]" % b",".join(small), 0)
            small, size = [], 0
        if len(text) > _WHOLE_BYTES:
            parsed.append(_parse_value(text, levels))
        else:
            small.append(text)
            size += len(text)
    if small:
        parsed += _parse_value(b"[%b]" % b",".join(small), 0)
    return parsed


def _parse_exactly(raw: bytes) -> Any:
    try:
        return parse_strict_json(raw.decode())
    except ValidationError as error:
        raise _body_error(f"{BODY_NAME} is not valid JSON: {error.message}") from None
    except UnicodeDecodeError:
        raise _body_error(f"{BODY_NAME} is not UTF-8") from None


class ParsedAppend(msgspec.Struct, frozen=True):
    """A parsed append, before validation by the log."""

    events: list[NewEvent]
    conditions: list[Condition]
    idempotency_key: str | None
    command: Any
    profile_rules: ProfileRules
    on_id_mismatch: Any


def convert_append(body: AppendBody, limits: Limits) -> ParsedAppend:
    """Convert an append that matches its type."""
    rules = PROFILES[body.profile]
    events = _convert_events(body.events, rules, limits)
    conditions = [_convert_condition(condition) for condition in body.conditions]
    return ParsedAppend(
        events, conditions, body.idempotency_key, body.command, rules, body.on_id_mismatch
    )


def convert_append_if(body: AppendIfBody, limits: Limits) -> ParsedAppend:
    """Convert a conditional append of facts that matches its type."""
    rules = PROFILES["facts"]
    events = _convert_events(body.events, rules, limits)
    condition = _make_context_condition(body.query, body.expected_version, body.after)
    return ParsedAppend(events, [condition], body.idempotency_key, None, rules, None)


def _convert_events(
    wire_events: list[WireEvent], rules: ProfileRules, limits: Limits
) -> list[NewEvent]:
    limits.check("append_events", len(wire_events))
    events: list[NewEvent] = []
    for index, event in enumerate(wire_events):
        try:
            events.append(from_wire_event(event))
        except ValidationError as error:
            raise rules.error(error, index) from None
    return events


def convert_append_strictly(value: Any, limits: Limits) -> ParsedAppend:
    """Convert an append that does not match its type, with the errors of the log's validation."""
    if not isinstance(value, dict):
        raise _body_error(f"{BODY_NAME} must be an object with events")
    rest = {name: inner for name, inner in value.items() if name != "events"}
    try:
        body = msgspec.convert({**rest, "events": []}, _UncheckedAppend)
    except msgspec.ValidationError as error:
        raise invalid_shape_error(error, BODY_NAME) from None
    except UnicodeEncodeError:
        raise _body_error(f"{BODY_NAME} has a field whose name is not valid text") from None
    raw_events = value.get("events")
    if not isinstance(raw_events, list):
        raise _body_error("events must be a list of events", "events")
    limits.check("append_events", len(raw_events))
    rules = PROFILES[body.profile]
    events = [_convert_event(event, index, rules) for index, event in enumerate(raw_events)]
    conditions = [_convert_condition(condition) for condition in body.conditions]
    return ParsedAppend(
        events, conditions, body.idempotency_key, body.command, rules, body.on_id_mismatch
    )


class _UncheckedAppend(AppendBody, forbid_unknown_fields=True):
    events: list[Any]


def _convert_event(value: Any, index: int, rules: ProfileRules) -> NewEvent:
    if not isinstance(value, dict):
        problem = ValidationError("envelope", "$", "an event must be an object")
        raise rules.error(problem, index)
    try:
        return NewEvent.from_mapping(value)
    except InvalidEvent as error:
        problem = ValidationError("envelope", error.details["field"], error.message)
        raise rules.error(problem, index) from None


def _convert_condition(condition: WireCondition) -> Condition:
    """Convert a condition; raises `InvalidArgument` unless its fields belong together."""
    if (condition.stream is None) == (condition.query is None):
        raise _body_error("a condition must name either a stream or a query", "conditions")
    if condition.stream is not None:
        if condition.version not in (None, UNSET) or condition.after is not UNSET:
            raise _body_error(
                "give seq with a stream, and version or after with a query", "conditions"
            )
        return ExpectedSeq(condition.stream, condition.seq)
    if condition.seq is not None:
        raise _body_error("give seq with a stream, and version or after with a query", "conditions")
    return _make_context_condition(condition.query, condition.version, condition.after)


def _make_context_condition(
    query: Any, version: int | UnsetType | None, after: int | UnsetType
) -> ExpectedContext:
    context = Query.from_mapping(query)
    if version is UNSET and after is UNSET:
        return ExpectedContext(context, None)
    return ExpectedContext(context, version, after)


def _body_error(message: str, argument: str = BODY_NAME) -> InvalidArgument:
    return InvalidArgument(message, details={"argument": argument})
