"""Stored values of read models: each type has one form, which databases preserve."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.column_types import COLUMN_TYPES, format_time, parse_time, stored_text_problem
from seriatim.core.errors import LimitExceeded

TOKYO = timezone(timedelta(hours=9))


class Nowhere(tzinfo):
    """A time zone without an offset."""

    def utcoffset(self, _: datetime | None) -> timedelta | None:
        """Return None."""
        return None

    def dst(self, _: datetime | None) -> timedelta | None:
        """Return None."""
        return None

    def tzname(self, _: datetime | None) -> str | None:
        """Return None."""
        return None


class Stamp(datetime):
    """A datetime of a library, which may have nanoseconds."""


class Name(str):
    """A string class of a library."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (str, "", ""),
        (str, "Grüße 🌍", "Grüße 🌍"),
        (int, -(1 << 63), -(1 << 63)),
        (int, (1 << 63) - 1, (1 << 63) - 1),
        (float, 3, 3.0),
        (float, 1e-320, 1e-320),
        (float, -1.5, -1.5),
        (bool, False, False),
        (datetime, datetime(2026, 1, 1, 9, tzinfo=TOKYO), datetime(2026, 1, 1, tzinfo=UTC)),
        (datetime, datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)),
        (dict, {"b": 1, "a": [1.0, 1e16, 10**20]}, '{"a":[1.0,1e16,100000000000000000000],"b":1}'),
        (list, ({"a": 1},), '[{"a":1}]'),
        (list, [], "[]"),
    ],
)
def test_values_are_normalized(kind: type, value: Any, kept: Any) -> None:
    """I3: a value is stored exactly, in one form of its type."""
    found = COLUMN_TYPES[kind].normalize(value)

    assert (found, type(found)) == (kept, type(kept))


def test_negative_zero_is_stored_as_zero() -> None:
    """I3: -0.0 is stored as 0.0, because SQLite returns 0.0 for it."""
    assert str(COLUMN_TYPES[float].normalize(-0.0)) == "0.0"


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (str, 1, "expected a str, got int"),
        (str, Name("x"), "expected a str, got Name"),
        (str, "a\0b", "U\\+0000"),
        (str, "a\ud800", "lone surrogates"),
        (int, True, "expected a 64-bit int, got bool"),
        (int, 1.0, "expected a 64-bit int, got float"),
        (int, 1 << 63, "expected a 64-bit int, got int"),
        (int, -(1 << 63) - 1, "expected a 64-bit int, got int"),
        (float, float("nan"), "expected a finite float, got float"),
        (float, float("inf"), "expected a finite float, got float"),
        (float, float("-inf"), "expected a finite float, got float"),
        (float, 10**400, "expected a finite float, got int"),
        (float, "1", "expected a finite float, got str"),
        (float, True, "expected a finite float, got bool"),
        (bool, 1, "expected a bool, got int"),
        (datetime, "2026-01-01", "expected a datetime with a time zone, got str"),
        (datetime, datetime(2026, 1, 1), "time zone"),  # noqa: DTZ001 - without a zone on purpose
        (datetime, datetime(2026, 1, 1, tzinfo=Nowhere()), "time zone"),
        (datetime, Stamp(2026, 1, 1, tzinfo=UTC), "got Stamp"),
        (dict, [], "expected a dict, got list"),
        (dict, {1: 2}, "object keys must be strings"),
        (dict, {"a": {"b": {1, 2}}}, r"\$\.a\.b: set is not a JSON type"),
        (dict, {"a": float("nan")}, "NaN"),
        (dict, {"a": "\0"}, "U\\+0000"),
        (list, {}, "expected a list, got dict"),
        (list, "text", "expected a list, got str"),
        (list, ["\ud800"], "lone surrogates"),
    ],
)
def test_invalid_values_are_refused(kind: type, value: Any, problem: str) -> None:
    """I7: a value of another type or out of range is refused, not converted."""
    with pytest.raises((TypeError, ValueError), match=problem):
        COLUMN_TYPES[kind].normalize(value)


def test_json_values_are_bounded_in_depth() -> None:
    """A JSON value has the depth limit of payloads."""
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]

    with pytest.raises(LimitExceeded):
        COLUMN_TYPES[list].normalize(deep)


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_as_text(value: datetime) -> None:
    """I3: a time as text has a fixed width and is parsed to the same time."""
    text = format_time(value)

    assert parse_time(text) == value
    assert len(text) == len("2000-01-01T00:00:00.000000Z")


@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_texts_of_times_sort_by_time(one: datetime, other: datetime) -> None:
    """I3: the texts of times are ordered like the times."""
    assert (one < other) == (format_time(one) < format_time(other))


def test_ambiguous_local_times_are_distinguished() -> None:
    """A local time that occurs twice has two instants."""
    berlin = ZoneInfo("Europe/Berlin")
    twice = [datetime(2025, 10, 26, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1)]
    early, late = map(COLUMN_TYPES[datetime].normalize, twice)

    assert late - early == timedelta(hours=1)


def test_invalid_stored_time_is_refused() -> None:
    """An invalid stored time is an error."""
    with pytest.raises(ValueError, match="is not a timestamp"):
        parse_time("yesterday")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_characters="\0", codec="utf-8")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "ü"]), JSON))
def test_json_values_round_trip(value: dict[str, Any]) -> None:
    """I3: a stored JSON value is decoded unchanged, and encoded to the same text again."""
    kind = COLUMN_TYPES[dict]
    text = kind.normalize(value)

    assert kind.to_python(text) == value
    assert kind.normalize(kind.to_python(text)) == text


@pytest.mark.parametrize("kind", list(COLUMN_TYPES))
def test_stored_values_round_trip_as_json(kind: type) -> None:
    """I3: stored values that tasks send as JSON are decoded unchanged."""
    samples: dict[type, Any] = {
        str: "ü",
        int: (1 << 63) - 1,
        float: 5.0,
        bool: True,
        datetime: datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        dict: {"a": 10**30},
        list: [1.0, 1e16],
    }
    value = COLUMN_TYPES[kind]
    kept = value.normalize(samples[kind])
    sent = msgspec.json.decode(msgspec.json.encode(value.to_json(kept)))
    found = value.from_json(sent)

    assert (found, type(found)) == (kept, type(kept))


def test_text_that_postgres_refuses_is_refused() -> None:
    """Text with NUL or lone surrogates, which Postgres refuses, is refused."""
    assert stored_text_problem("Grüße\n") is None
    assert stored_text_problem("\0") is not None
    assert stored_text_problem("\udfff") is not None
