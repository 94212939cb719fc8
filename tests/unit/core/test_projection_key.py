"""The key of an event in a projection."""

from __future__ import annotations

import json
from typing import Any

import pytest

from seriatim.core.canonical import canonical_text
from seriatim.core.event import EventRecord
from seriatim.core.projection import (
    extract_key,
    format_key,
    is_key,
    is_payload_path,
    parse_key_path,
    projection,
)


def record_with(payload: Any, **fields: Any) -> EventRecord:
    """Make a record with a payload."""
    given = {
        **dict.fromkeys(EventRecord.__struct_fields__),
        "event_type": "x",
        "event_version": 1,
        "recorded_at": "2026-01-01T00:00:00.000001Z",
        "payload_json": canonical_text(payload),
        **fields,
    }
    return EventRecord(**given)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("a", "a"),
        (" ", " "),
        ("2026-01-01T00:00:00+02:00", "2026-01-01T00:00:00+02:00"),
        (7, "7"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (1e16, "1e16"),
        (1.5e-7, "1.5e-7"),
        (10**40, "1" + "0" * 40),
        (True, "true"),
        (False, "false"),
        ([1, "a"], '[1,"a"]'),
        ({"b": 1.0, "a": None}, '{"a":null,"b":1.0}'),
        (None, None),
    ],
)
def test_values_as_keys(value: Any, key: str | None) -> None:
    """I1: a string is its own key; other values have the key of their canonical JSON."""
    assert format_key(value) == key
    assert extract_key("payload.at", record_with({"at": value})) == key
    assert extract_key('payload["at"]', record_with({"at": value})) == key


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("payload.a", ("a",)),
        ("payload.a.b", ("a", "b")),
        ("payload.it's", ("it's",)),
        ("payload.*", ("*",)),
        ("payload.a b", ("a b",)),
        ('payload["a.b"]', ("a.b",)),
        ('payload.a["b.c"].d', ("a", "b.c", "d")),
        ('payload["\\"quoted\\""]', ('"quoted"',)),
        ("payload..a", None),
        ("payload.", None),
        ("payload", None),
        ("payloads.a", None),
        ("pay.a", None),
        ("payload.items[].sku", None),
        ("payload.items[0]", None),
        ('payload.a"b', None),
        ('payload["\\q"]', None),
        ("stream_id", None),
    ],
)
def test_paths_of_keys(key: str, path: tuple[str, ...] | None) -> None:
    """I1: a key may be any path into the payload; an invalid path is refused."""
    assert parse_key_path(key) == path
    assert is_payload_path(key) is (path is not None)
    assert is_key(key) is (path is not None or key == "stream_id")


def test_names_with_special_characters() -> None:
    """I1: quotes, stars and dots in a name are part of the name."""
    payload = {"it's": "quote", "*": "star", "a.b": "dot", "a": {"b": "nested"}}
    event = record_with(payload)

    assert extract_key("payload.it's", event) == "quote"
    assert extract_key("payload.*", event) == "star"
    assert extract_key('payload["a.b"]', event) == "dot"
    assert extract_key("payload.a.b", event) == "nested"
    assert extract_key("payload.a.b.c", event) is None


def test_fields_as_keys() -> None:
    """I1: a field of the record is a key in its text form."""
    event = record_with(
        {},
        stream_type="a:b",
        stream_id="c",
        stream_seq=3,
        occurred_at="2026-01-01T00:00:00.5+02:00",
        actor_id=None,
    )

    assert extract_key("stream", event) == "a%3Ab:c"
    assert extract_key("stream_seq", event) == "3"
    assert extract_key("occurred_at", event) == "2026-01-01T00:00:00.5+02:00"
    assert extract_key("recorded_at", event) == event.recorded_at
    assert extract_key("actor_id", event) is None
    assert extract_key("stream", record_with({}, stream_type=None, stream_id=None)) is None


@pytest.mark.parametrize(
    ("made", "error"),
    [("", "empty"), (7, "got int"), ("a\0", "U\\+0000"), ("\ud800", "surrogate")],
)
def test_invalid_keys_fail(made: Any, error: str) -> None:
    """I7: a key that is empty, no string or cannot be stored is an error."""
    with pytest.raises((TypeError, ValueError), match=error):
        extract_key(lambda _event: made, record_with({}))
    assert extract_key(lambda _event: None, record_with({})) is None


def test_empty_values_fail() -> None:
    """I7: an empty string is no key."""
    with pytest.raises(ValueError, match="empty"):
        extract_key("payload.at", record_with({"at": ""}))
    with pytest.raises(ValueError, match="empty"):
        extract_key("source_system", record_with({}, source_system=""))


def test_payload_keys_use_upcast_payloads() -> None:
    """I5: a key in the payload is that of the newest version; other fields are as stored."""

    def step(data: dict[str, Any]) -> dict[str, Any]:
        return {"new": data["old"]}

    def declared(key: Any) -> Any:
        options: dict[str, Any] = {"columns": {"n": int}, "upcasters": {("x", 1): step}}
        return projection("p", key=key, **options)(lambda state, _event: state)

    event = record_with(
        {"old": "k"}, event_type="x", event_version=1, stream_type="s", stream_id="1"
    )

    assert declared("payload.new").extract_key(event) == "k"
    assert declared("event_version").extract_key(event) == "2"
    assert declared(lambda given: given.payload["new"]).extract_key(event) == "k"
    assert declared("stream_id").extract_key(record_with({}, event_type="x", stream_id="1")) == "1"
    assert json.loads(event.payload_json) == {"old": "k"}
