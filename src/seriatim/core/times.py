"""RFC 3339 timestamps: parsed to microseconds for filters, stored byte for byte in records."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
_LOG_FORM = "2000-01-01T00:00:00.000000Z"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAY_S = 86_400
_LEAP_SECOND = 60
_LAST_HOUR, _LAST_MINUTE = 23, 59
_TEXT_CHARS_MAX = 64  # bounds the cached texts

# The range that Python, Arrow, Spark and Postgres can all represent: 0001-01-01T00:00:00Z up to
# 9999-12-31T23:59:59.999999Z.
EARLIEST_US = -62_135_596_800_000_000
LATEST_US = 253_402_300_799_999_999


def time_problem(text: object) -> str | None:
    """Return why a value is not a valid timestamp from a caller, or None if it is.

    A leap second (`:60`) is valid only at the end of a month in UTC.
    """
    microseconds = parse_us(text)
    if microseconds is None or type(text) is not str:
        return "must be an RFC 3339 timestamp"
    if not EARLIEST_US <= microseconds <= LATEST_US:
        return "must be within the years 0001 to 9999 in UTC"
    if text[17:19] == str(_LEAP_SECOND):
        day, second_of_day = divmod(microseconds // 1_000_000, _DAY_S)
        # `parse_us` counts it as the first second of the next minute, here of the next month.
        if second_of_day or date.fromordinal(_EPOCH_DAY + day).day != 1:
            return "may have a leap second only as the last second of a month in UTC"
    return None


def parse_us(text: object) -> int | None:
    """Return the microseconds since 1970 of an RFC 3339 string, or None if it is not one.

    Digits finer than a microsecond are truncated.
    """
    if type(text) is not str or len(text) > _TEXT_CHARS_MAX:
        return None
    if len(text) == len(_LOG_FORM) and text[19] == "." and text[-1] == "Z" and text.isascii():
        fraction = text[20:-1]
        # Hot path: the form that `format_us` writes. Neighbouring records share the cached second.
        if fraction.isdigit():
            second = _parse_instant(text[:19] + "Z")
            return None if second is None else second + int(fraction)
    return _parse_instant(text)


@lru_cache(maxsize=1024)
def _parse_instant(text: str) -> int | None:
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, off_hour, off_minute = match.groups()
    # A leap second is valid, and counts as the first second of the next minute.
    if int(hour) > _LAST_HOUR or int(minute) > _LAST_MINUTE or int(second) > _LEAP_SECOND:
        return None
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    seconds = days * 86_400 + int(hour) * 3_600 + int(minute) * 60 + int(second)
    if sign:
        if int(off_hour) > _LAST_HOUR or int(off_minute) > _LAST_MINUTE:
            return None
        offset = int(off_hour) * 3_600 + int(off_minute) * 60
        seconds += offset if sign == "-" else -offset
    return seconds * 1_000_000 + int((fraction or "")[:6].ljust(6, "0"))


def format_us(microseconds: int) -> str:
    """Format microseconds since 1970 as RFC 3339 in UTC, with six fractional digits."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    return f"{_format_second(seconds)}.{fraction:06d}Z"


@lru_cache(maxsize=1024)  # neighbouring records share their second
def _format_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]
