"""RFC 3339 timestamps: their validation and parsing."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.times import EARLIEST_US, LATEST_US, format_us, parse_us, time_problem

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01t00:00:01z", 1_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:30:00-00:30", 0),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("1970-01-01T00:00:00.1Z", 100_000),
        ("1970-01-01T00:00:00.1234567890Z", 123_456),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000_000),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000_000),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999_999),
        ("2024-02-29T00:00:00+23:59", 1_709_078_460_000_000),
    ],
)
def test_timestamps_are_parsed(text: Any, instant: Any) -> None:
    """E1: a timestamp is parsed to its instant in microseconds."""
    assert parse_us(text) == instant


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "2024-01-01", "2024-01-01T00:00:00", "2024-01-01 00:00:00Z"),
        *("2024-13-01T00:00:00Z", "2024-00-01T00:00:00Z", "2023-02-29T00:00:00Z"),
        *("2024-01-01T24:00:00Z", "2024-01-01T00:60:00Z", "2024-01-01T00:00:61Z"),
        *("2024-01-01T00:00:00+24:00", "2024-01-01T00:00:00+00:60", "2024-01-01T00:00:00+01"),
        *(
            "0000-01-01T00:00:00Z",
            "2024-01-01T00:00:00.Z",
            "2024-1-1T00:00:00Z",
            " 2024-01-01T00:00:00Z",
        ),
        *(
            "2024-01-01T00:00:00Z\n",
            "٢٠٢٤-01-01T00:00:00Z",
            "2024-01-01T00:00:00." + "1" * 60 + "Z",
            "2024-13-01T00:00:00.000000Z",
            "2024-01-01T00:00:00.00000xZ",
            "2024-01-01T00:00:00.00000²Z",
        ),
        *(None, 0, b"2024-01-01T00:00:00Z"),
    ],
)
def test_invalid_timestamps_are_refused(text: Any) -> None:
    """A1: an invalid timestamp is refused."""
    assert parse_us(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "0001-01-01T00:00:00Z",
        "0001-01-01T23:59:00+23:59",
        "0001-01-01T00:00:00-23:59",
        "9999-12-31T23:59:59.999999Z",
        "9999-12-31T23:59:59.9999999999Z",
        "9999-12-31T00:00:59-23:59",
        "2016-12-31T23:59:60Z",
        "2016-12-31T23:59:60.5Z",
        "2015-06-30T23:59:60+00:00",
        "2017-01-01T00:59:60+01:00",
        "2016-12-31T15:59:60-08:00",
        "2024-02-29T23:59:60Z",
    ],
)
def test_valid_occurred_at_times(text: str) -> None:
    """A1: instants of the years 1 to 9999 and possible leap seconds are valid."""
    assert time_problem(text) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("9999-12-31T23:59:60Z", "years"),
        ("9999-12-31T23:59:59-00:01", "years"),
        ("9999-12-31T00:01:00-23:59", "years"),
        ("0001-01-01T00:00:00+23:59", "years"),
        ("0001-01-01T00:00:00+00:01", "years"),
        ("0001-01-01T23:58:59.999999+23:59", "years"),
        ("2016-12-31T12:34:60Z", "leap second"),
        ("2016-12-30T23:59:60Z", "leap second"),
        ("2016-12-31T23:59:60+01:00", "leap second"),
        ("2024-02-28T23:59:60Z", "leap second"),
        ("2016-12-31T23:59:61Z", "RFC 3339"),
        ("2016-12-31", "RFC 3339"),
        (None, "RFC 3339"),
        (7, "RFC 3339"),
    ],
)
def test_invalid_occurred_at_times(text: Any, problem: str) -> None:
    """A1: an instant that Python, Arrow or Postgres cannot represent is refused with a reason."""
    assert problem in (time_problem(text) or "")


def test_bounds_are_those_of_python() -> None:
    """A1: the bounds are the first and last instant of a Python datetime."""
    microsecond = timedelta(microseconds=1)

    assert (datetime.min.replace(tzinfo=UTC) - EPOCH) // microsecond == EARLIEST_US
    assert (datetime.max.replace(tzinfo=UTC) - EPOCH) // microsecond == LATEST_US


@given(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)), st.integers(-1439, 1439))  # noqa: DTZ001 - the zone is drawn
def test_instants_do_not_depend_on_the_zone(moment: Any, minutes: Any) -> None:
    """E1: one instant in different time zones is parsed to the same value."""
    utc = moment.replace(tzinfo=UTC)
    local = (moment + timedelta(minutes=minutes)).isoformat()
    sign = "-" if minutes < 0 else "+"
    zone = f"{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
    expected = (utc - EPOCH) // timedelta(microseconds=1)

    assert parse_us(local + zone) == expected


@given(st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999))
def test_formatted_times_are_parsed_back(instant: Any) -> None:
    """A1: the store's time is RFC 3339 in UTC with six digits, and parses to its instant."""
    text = format_us(instant)

    assert len(text) == 27
    assert text.endswith("Z")
    assert parse_us(text) == instant


def test_whole_seconds_have_six_digits() -> None:
    """A1: times have six digits after the second, also before 1970."""
    assert format_us(0) == "1970-01-01T00:00:00.000000Z"
    assert format_us(-1) == "1969-12-31T23:59:59.999999Z"
