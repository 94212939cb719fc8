"""Invalid input of every kind: a typed error names the field or index, and nothing is stored."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any

import pytest

from seriatim.core.event import ENVELOPE_TEXTS, NewEvent
from seriatim.factory import Log
from seriatim.profiles.aggregate_values import AGGREGATES_PROFILE
from seriatim.profiles.facts import FACTS_PROFILE
from seriatim.testing.factories import (
    assert_all_refused,
    assert_refused,
    assert_unchanged,
    event,
    events,
)

HOSTILE_IDS = {
    "empty": "",
    "leading space": " foo",
    "trailing space": "foo ",
    "leading tab": "\tfoo",
    "trailing newline": "foo\n",
    "inner newline": "fo\no",
    "NUL": "fo\0o",
    "escape": "\x1b[0m",
    "delete": "fo\x7fo",
    "C1 control": "fo\x85o",
    "lone surrogate": "fo\ud800o",
    "513 bytes": "x" * 513,
    "257 two-byte characters": "é" * 257,
    "number": 7,
    "bytes": b"foo",
    "list": ["foo"],
}

_event: Any = event  # for values that its types forbid


class ColourEnum(Enum):
    """An enum, which is not a JSON value."""

    RED = "red"


class LevelEnum(IntEnum):
    """An integer enum."""

    HIGH = 1


class StrSubclass(str):
    """A subclass of str, as libraries define them."""

    __slots__ = ()


class FloatSubclass(float):
    """A subclass of float."""

    __slots__ = ()


class IntSubclass(int):
    """A subclass of int."""

    __slots__ = ()


class BadInputContract:
    """Invalid input raises a typed error and stores nothing."""

    @pytest.fixture(autouse=True)
    def _something(self, log: Log) -> None:
        log.append([event(stream=("s", "1"), event_id="e-1", idempotency_key="k-1")])

    def test_fields_of_wrong_types_are_named(self, log: Log) -> None:
        """B2: a field of a wrong type is refused, and the error names it."""
        bad = "invalid_event"
        cases: dict[str, tuple[Any, ...]] = {}
        texts: list[Any] = [7, b"x", ["x"], "a\0b", "\ud800", "x" * 513]
        for field in ENVELOPE_TEXTS:
            if field == "idempotency_key":
                continue
            for wrong in texts:
                cases[f"{field} {wrong!r:.20}"] = (_event(**{field: wrong}), bad, field)
        others: list[tuple[str, str, Any]] = [
            ("version 0", "event_version", 0),
            ("version true", "event_version", True),
            ("version text", "event_version", "1"),
            ("version float", "event_version", 1.0),
            ("version none", "event_version", None),
            ("version too large", "event_version", 2**31),
            ("time text", "occurred_at", "today"),
            ("time without zone", "occurred_at", "2024-01-01T00:00:00"),
            ("day only", "occurred_at", "2024-01-01"),
            ("thirteenth month", "occurred_at", "2024-13-01T00:00:00Z"),
            ("no such day", "occurred_at", "2023-02-29T00:00:00Z"),
            ("hour 24", "occurred_at", "2024-01-01T24:00:00Z"),
            ("after the year 9999", "occurred_at", "9999-12-31T23:59:60Z"),
            ("after it by its offset", "occurred_at", "9999-12-31T23:59:59-00:01"),
            ("before the year 1", "occurred_at", "0001-01-01T00:00:00+23:59"),
            ("leap second at noon", "occurred_at", "2016-12-31T12:00:60Z"),
            ("time object", "occurred_at", datetime.now(UTC)),
            ("time number", "occurred_at", 0),
            ("tags text", "tags", "x"),
            ("tags set", "tags", {"x"}),
            ("tags none", "tags", None),
            ("metadata text", "metadata", "x"),
            ("metadata none", "metadata", None),
            ("metadata list", "metadata", [("a", "b")]),
            ("metadata number", "metadata", {"a": 1}),
            ("metadata key", "metadata", {1: "a"}),
            ("metadata NUL", "metadata", {"a": "\0"}),
            ("stream text", "stream", "s"),
            ("stream of one", "stream", ("s",)),
            ("stream of three", "stream", ("s", "1", "2")),
        ]
        for name, field, wrong in others:
            cases[name] = (_event(**{field: wrong}), bad, field)
        cases["tag number"] = (_event(tags=("a", 1)), bad, "tags[1]")
        cases["tag NUL"] = (event(tags=("\0",)), bad, "tags[0]")
        cases["tag surrogate"] = (event(tags=("\ud800",)), bad, "tags[0]")
        numbers: list[Any] = [-1, True, "1", 1.0, 2**63]
        for wrong in numbers:
            candidate = event(stream=("s", "1"), stream_seq=wrong)
            cases[f"stream_seq {wrong!r}"] = (candidate, bad, "stream_seq")
        cases["number without a stream"] = (event(stream_seq=1), bad, "stream_seq")
        assert_all_refused(log, lambda candidate: log.append([candidate]), cases)

    def test_invalid_ids_are_refused_in_every_field(self, log: Log) -> None:
        """A4: an invalid id is refused, never altered, in every field that holds an id."""
        cases: dict[str, tuple[Any, ...]] = {}
        for name, wrong in HOSTILE_IDS.items():
            for field, fields in (
                ("event_type", {"event_type": wrong}),
                ("event_id", {"event_id": wrong}),
                ("stream_id", {"stream": ("s", wrong)}),
                ("stream_type", {"stream": (wrong, "1")}),
            ):
                cases[f"{field}: {name}"] = (event(**fields), "invalid_event", field)
        assert_all_refused(log, lambda candidate: log.append([candidate]), cases)

    def test_white_space_beyond_ascii_is_accepted(self, log: Log) -> None:
        """A4: at the ends of an id, only ASCII white space and control characters are refused."""
        ids = ["\u00a0foo", "foo\u2003", "\u200bfoo", "\ufeff", "🦆", "x" * 512, "é" * 256]
        for name in ids:
            log.append([event(stream=("s", name), event_id=name)])

        assert [record.stream_id for record in log.read(after=1)] == ids

    def test_invalid_json_is_refused(self, log: Log) -> None:
        """A2: values that JSON cannot represent are refused with their JSON path."""
        values: dict[str, Any] = {
            "NaN": float("nan"),
            "infinity": float("inf"),
            "minus infinity": float("-inf"),
            "NUL": "a\0b",
            "high surrogate": "\ud83e",
            "low surrogate": "a\udd86",
            "bytes": b"x",
            "set": {1},
            "frozen set": frozenset({1}),
            "decimal": Decimal(1),
            "time": datetime.now(UTC),
            "enum": ColourEnum.RED,
            "object": object(),
            "class": int,
            "generator": (number for number in "12"),
            "complex": 1j,
            "struct": NewEvent("x"),
            "range": range(3),
        }
        cases: dict[str, tuple[Any, ...]] = {}
        for name, value in values.items():
            cases[name] = (event(payload={"a": [1, {"b": value}]}), "invalid_event", "$.a[1].b")
            cases[f"{name} after text"] = (
                event(payload={"é": 1, "v": value}),
                "invalid_event",
                "$.v",
            )
        for name, key in (("integer", 1), ("none", None), ("bytes", b"k"), ("tuple", (1,))):
            cases[f"{name} key"] = (event(payload={"a": {key: 1}}), "invalid_event", "$.a")
        cases["NUL in a key"] = (event(payload={"a": {"k\0": 1}}), "invalid_event", "$.a")
        cases["surrogate in a key"] = (event(payload={"\ud800": 1}), "invalid_event", "$")
        assert_all_refused(log, lambda candidate: log.append([candidate]), cases)

    def test_recursive_payload_is_refused(self, log: Log) -> None:
        """K3: a payload that contains itself is refused as too deep."""
        endless: dict[str, Any] = {}
        endless["self"] = endless

        with assert_refused(log, "limit_exceeded", limit="payload_depth", index=0):
            log.append([event(payload=endless)])

    def test_subclasses_are_stored_as_plain_values(self, log: Log) -> None:
        """A2: subclasses of str, int, float and dict are stored as their plain values."""
        candidate = OrderedDict(
            b=StrSubclass("text"), a=[FloatSubclass(1.5), IntSubclass(7), LevelEnum.HIGH, (1, 2)]
        )

        log.append([event(payload=candidate)])

        assert list(log.read())[-1].payload_json == '{"a":[1.5,7,1,[1,2]],"b":"text"}'

    def test_wrong_fields_of_a_dictionary_are_named(self, log: Log) -> None:
        """B2: unknown, missing, reserved and duplicate fields of a dictionary are named."""
        bad = "invalid_event"
        assert_all_refused(
            log,
            lambda candidate: log.append([candidate]),
            {
                "unknown": ({"event_type": "x", "colour": "red"}, bad, "colour"),
                "not text": ({"event_type": "x", 1: 2}, bad, "1"),
                "missing": ({"payload": {}}, bad, "event_type"),
                "none": ({"event_type": None}, bad, "event_type"),
                "position": ({"event_type": "x", "position": 9}, bad, "position"),
                "recorded_at": ({"event_type": "x", "recorded_at": "now"}, bad, "recorded_at"),
                "half a stream": ({"event_type": "x", "stream_id": "1"}, bad, "stream_type"),
                "other half": ({"event_type": "x", "stream_type": "s"}, bad, "stream_id"),
                "two streams": (
                    {"event_type": "x", "stream": ("s", "1"), "stream_id": "2", "stream_type": "s"},
                    bad,
                    "stream",
                ),
                "no event": ("x", bad, "$"),
                "nothing": (None, bad, "$"),
                "list": ([], bad, "$"),
            },
        )

    def test_invalid_batches_are_refused(self, log: Log) -> None:
        """B1: a single event, a string and None are not batches."""
        no_batches: list[Any] = [event(), {"event_type": "x"}, "events", None, 7]
        for wrong in no_batches:
            with assert_refused(log, "invalid_argument", argument="events"):
                log.append(wrong)

    def test_error_reports_the_index_of_the_event(self, log: Log) -> None:
        """B2: the error contains the index of the event, also in a large batch."""
        batch: list[Any] = events(50)
        batch[37] = event(payload={"x": float("nan")})
        with assert_refused(log, "invalid_event", index=37, field="$.x"):
            log.append(batch)
        batch[37] = {"event_type": "x", "position": 1}
        with assert_refused(log, "invalid_event", index=37, field="position"):
            log.append(batch)

    def test_errors_never_show_values(self, log: Log) -> None:
        """K1: an error message names the field and never contains its value."""
        private = "private-9731"
        for candidate in (
            event(payload={"x": private + "\0"}),
            event(payload={"x": {private: b""}.keys()}),
            event(occurred_at=private),
            event(tags=(private + "\0",)),
            event(actor_id=private + "\0"),
            event(idempotency_key=private * 30),
        ):
            with assert_refused(log, "invalid_event") as caught:
                log.append([candidate])
            assert private not in str(caught[0].as_dict())

    def test_facts_profile_reports_invalid_events(self, log: Log) -> None:
        """B2, L3: the facts profile reports every invalid event as `invalid_event`."""
        bad = "invalid_event"
        assert_all_refused(
            log,
            lambda candidate: log.append_draft(log.draft(FACTS_PROFILE, [candidate])),
            {
                "type": (event(""), bad, "event_type"),
                "time": (event(occurred_at="2024-01-01T00:00:00Z"), bad, "occurred_at"),
                "NaN": (event(payload=[float("nan")]), bad, "$[0]"),
                "bytes": (event(payload=b"x"), bad, "$"),
                "id": (event(event_id=" "), bad, "event_id"),
                "key": (event(idempotency_key=""), bad, "idempotency_key"),
                "position": ({"event_type": "x", "position": 1}, bad, "position"),
            },
        )

    def test_aggregates_profile_requires_its_fields(self, log: Log) -> None:
        """A7: aggregates need a stream, a request id and one of their actors."""
        valid: dict[str, Any] = {
            "stream": ("order", "1"),
            "request_id": "r-1",
            "actor_type": "service_principal",
            "actor_id": "svc",
        }
        bad = "invalid_event"
        assert_all_refused(
            log,
            lambda candidate: log.append_draft(log.draft(AGGREGATES_PROFILE, [candidate])),
            {
                **{
                    f"no {field}": (event(**(valid | {field: None})), bad, field)
                    for field in ("stream", "request_id", "actor_type", "actor_id")
                },
                "actor type": (event(**(valid | {"actor_type": "agent"})), bad, "actor_type"),
            },
        )
        log.append_draft(log.draft(AGGREGATES_PROFILE, [event(**valid)]))

    def test_invalid_timeouts_are_refused(self, log: Log) -> None:
        """B13: a timeout is a number of seconds above 0."""
        assert_all_refused(
            log,
            lambda timeout: log.append(events(1), timeout=timeout),
            {
                repr(wrong): (wrong, "invalid_argument", "timeout")
                for wrong in (0, -1, "1", True, float("nan"), float("inf"))
            },
        )

    def test_events_are_frozen(self, log: Log) -> None:
        """A1: neither a new event nor a record can be changed."""
        record = next(log.read())
        for value, field in ((event(), "event_type"), (record, "position"), (record, "payload")):
            with pytest.raises(AttributeError):
                setattr(value, field, "other")

    def test_a_given_payload_is_not_shared(self, log: Log) -> None:
        """A1: changes of appended or read values do not affect stored events."""
        payload: dict[str, Any] = {"list": [1]}
        metadata = {"a": "b"}
        result = log.append([event(payload=payload, metadata=metadata)])

        with assert_unchanged(log):
            payload["list"].append(2)
            metadata["a"] = "c"
            result.records[0].payload["list"].append(3)
        assert list(log.read())[-1].payload == {"list": [1]}
        assert dict(list(log.read())[-1].metadata) == {"a": "b"}

    def test_records_have_a_dictionary_form(self, log: Log) -> None:
        """A1: a record's dictionary form has every field, with the payload as a value."""
        record = next(log.read())

        shown = record.as_dict()
        assert set(shown) == set(type(record).__struct_encode_fields__)
        assert (shown["payload"], shown["tags"], shown["metadata"]) == ({}, [], {})
