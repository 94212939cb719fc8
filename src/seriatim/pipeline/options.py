"""Options of the Spark data source: parsed from text, validated, and rejected by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from seriatim.core.errors import InvalidArgument
from seriatim.core.ids import id_problem
from seriatim.core.patterns import Names, pattern_problem
from seriatim.core.tenants import check_tenant
from seriatim.core.times import instant_us, time_problem
from seriatim.pipeline.columns import NAMES
from seriatim.pipeline.database import find_place
from seriatim.pipeline.wanted import END, Scan, Window

EARLIEST, LATEST = "earliest", "latest"

_INTERNAL = ("marks", "packed")  # set by the project's own jobs, not documented
# Spelled as in the documentation. Spark passes option names in lower case.
SOURCE_OPTIONS = (
    "url",
    "columns",
    "payload",
    "partitions",
    "startingPosition",
    "endingPosition",
    "maxEventsPerBatch",
    "tenant",
    "types",
    "streamType",
    "streamId",
    "occurredAfter",
    "occurredUntil",
    "recordedAfter",
    "recordedUntil",
    "archive",
    *_INTERNAL,
)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Validated options of a read.

    Attributes:
        url: The URL of the log.
        scan: Filters and columns.
        payload: Whether payloads are JSON text or Spark VARIANT values.
        partitions: The number of partitions of a batch; None lets the size of the range decide.
        starting: The position before the first event, or where a stream starts.
        ending: The last position of a batch; None means the head.
        max_events: The largest number of positions in one batch of a stream.
        archive: The location of an archive to read sealed positions from.
        marks: Whether every partition ends with a watermark row.
        packed: Whether a column with whole encoded records is added.
    """

    url: str
    scan: Scan
    payload: Literal["json", "variant"] = "json"
    partitions: int | None = None
    starting: int | Literal["earliest", "latest"] = "earliest"
    ending: int | None = None
    max_events: int | None = None
    archive: str | None = None
    marks: bool = False
    packed: bool = False


def source_options(given: Mapping[str, str]) -> Options:
    """Parse and validate the options of a read.

    Args:
        given: Options as Spark passes them; names are case-insensitive.

    Raises:
        InvalidArgument: An option is unknown, or its value is invalid.
    """
    found = known_options(given, SOURCE_OPTIONS)
    url = found.get("url")
    if not url:
        raise bad("url", "is required: the URL of the log, such as sqlite:///app.db")
    find_place(url)  # raises if the URL is invalid
    return Options(
        url=url,
        scan=_parse_scan(found),
        payload=_parse_payload(found.get("payload", "json")),
        partitions=number(found, "partitions", least=1),
        starting=_parse_starting(found),
        ending=number(found, "endingPosition"),
        max_events=number(found, "maxEventsPerBatch", least=1),
        archive=found.get("archive"),
        marks=flag(found, "marks"),
        packed=flag(found, "packed"),
    )


def known_options(given: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Return options under their documented names.

    Args:
        given: Options with names in any case.
        known: The documented names.

    Raises:
        InvalidArgument: An option is unknown; the message lists the documented ones.
    """
    names = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    for key, value in given.items():
        name = names.get(key.lower())
        if name is None:
            documented = ", ".join(sorted(set(names.values()) - set(_INTERNAL)))
            raise bad(key[:80], f"is not an option of the format seriatim; options: {documented}")
        found[name] = value
    return found


def _parse_scan(found: Mapping[str, str]) -> Scan:
    return Scan(
        columns=_parse_columns(found.get("columns")),
        tenants=_parse_tenant(found),
        types=_parse_patterns(found, "types"),
        stream_types=_parse_patterns(found, "streamType"),
        stream_ids=_parse_id(found, "streamId"),
        occurred=_parse_interval(found, "occurred"),
        recorded=_parse_interval(found, "recorded"),
    )


def _parse_columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return NAMES
    columns = tuple(listed(text))
    for name in columns:
        if name not in NAMES:
            msg = f"contains {name!r:.80}, which is not a column; columns: {', '.join(NAMES)}"
            raise bad("columns", msg)
    if not columns or len(set(columns)) < len(columns):
        raise bad("columns", "must name at least one column, and none twice")
    return columns


def listed(text: str) -> list[str]:
    """Parse a list of names: comma-separated, or a JSON list for names that contain commas."""
    if text.lstrip().startswith("["):
        try:
            return msgspec.json.decode(text, type=list[str])
        except msgspec.DecodeError:
            pass  # not JSON: a name may start with a bracket
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_patterns(found: Mapping[str, str], option: str) -> Names | None:
    if option not in found:
        return None
    patterns = listed(found[option])
    for pattern in patterns:
        if problem := pattern_problem(_check_id(option, pattern)):
            raise bad(option, problem)
    return Names.of(patterns)


def _parse_id(found: Mapping[str, str], option: str) -> Names | None:
    if option not in found:
        return None
    return Names((_check_id(option, found[option]),))


def _parse_tenant(found: Mapping[str, str]) -> Names | None:
    if "tenant" not in found:
        return None
    return Names((check_tenant(found["tenant"], "tenant"),))


def _check_id(option: str, value: str) -> str:
    if problem := id_problem(value):
        raise bad(option, problem)
    return value


def _parse_interval(found: Mapping[str, str], prefix: str) -> Window:
    bounds: list[int | None] = []
    for option in (f"{prefix}After", f"{prefix}Until"):
        text = found.get(option)
        if text is not None and (problem := time_problem(text)):
            raise bad(option, f"{problem}, such as 2026-01-31T12:00:00Z")
        bounds.append(None if text is None else instant_us(text))
    return Window(*bounds)


def _parse_starting(found: Mapping[str, str]) -> int | Literal["earliest", "latest"]:
    text = found.get("startingPosition", EARLIEST).lower()
    if text == EARLIEST:
        return "earliest"
    if text == LATEST:
        return "latest"
    try:
        return number(found, "startingPosition") or 0
    except InvalidArgument:
        raise bad("startingPosition", "must be a position, earliest or latest") from None


def _parse_payload(text: str) -> Literal["json", "variant"]:
    if text == "json":
        return "json"
    if text == "variant":
        return "variant"
    raise bad("payload", "must be json or variant")


def number(found: Mapping[str, str], option: str, *, least: int = 0) -> int | None:
    """Parse a whole-number option; None if it is not given.

    Raises:
        InvalidArgument: The text is not a whole number, or is below `minimum`.
    """
    text = found.get(option)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= END:
        raise bad(option, f"must be a whole number of at least {least}")
    return int(text)


def flag(found: Mapping[str, str], option: str) -> bool:
    """Parse a boolean option; False if it is not given.

    Raises:
        InvalidArgument: The text is neither true nor false.
    """
    text = found.get(option, "false").lower()
    if text not in ("true", "false"):
        raise bad(option, "must be true or false")
    return text == "true"


def bad(option: str, problem: str) -> InvalidArgument:
    """Return the error for an invalid option; the message is `<option> <problem>`."""
    return InvalidArgument(f"{option} {problem}", details={"option": option})
