"""Options of the Spark data source: parsed from text, validated, and rejected by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from seriatim.core.errors import InvalidArgument
from seriatim.core.ids import id_problem, text_problem
from seriatim.core.patterns import NameFilter, pattern_problem
from seriatim.core.tenants import check_tenant
from seriatim.core.times import parse_us, time_problem
from seriatim.pipeline.columns import EVENT_COLUMNS
from seriatim.pipeline.scan.database import parse_database_url

MAX_POSITION = (1 << 63) - 1  # larger than any position of a log


class Interval(msgspec.Struct, frozen=True):
    """A half-open interval of integers, (after, until]; None means unbounded.

    Times are microseconds since the Unix epoch.
    """

    after: int | None = None
    until: int | None = None

    def intersect(self, other: Interval) -> Interval:
        """Return the intersection with another interval."""
        afters = [bound for bound in (self.after, other.after) if bound is not None]
        untils = [bound for bound in (self.until, other.until) if bound is not None]
        return Interval(max(afters, default=None), min(untils, default=None))


class KeyPartition(msgspec.Struct, frozen=True):
    """One of several hash partitions of all events: events with equal columns stay together.

    Attributes:
        columns: The columns that are hashed.
        nth: The index of this partition, from 0.
        of: The number of partitions.
    """

    columns: tuple[str, ...]
    index: int
    count: int


class ScanSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Filters and columns of a scan; a filter that is None matches every event."""

    columns: tuple[str, ...] = EVENT_COLUMNS
    tenants: NameFilter | None = None
    types: NameFilter | None = None
    stream_types: NameFilter | None = None
    stream_ids: NameFilter | None = None
    event_ids: NameFilter | None = None
    correlation_ids: NameFilter | None = None
    causation_ids: NameFilter | None = None
    actor_ids: NameFilter | None = None
    occurred: Interval = Interval()
    recorded: Interval = Interval()
    key_partition: KeyPartition | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether the scan may skip events of its range."""
        return self.with_all_columns != ALL_EVENTS

    @property
    def with_all_columns(self) -> ScanSpec:
        """The same filters with every column."""
        return msgspec.structs.replace(self, columns=EVENT_COLUMNS)


ALL_EVENTS = ScanSpec()
# The fields of a scan that filter by name, and the event column that each one filters.
NAME_COLUMNS = {
    "tenants": "tenant_id",
    "types": "event_type",
    "stream_types": "stream_type",
    "stream_ids": "stream_id",
    "event_ids": "event_id",
    "correlation_ids": "correlation_id",
    "causation_ids": "causation_id",
    "actor_ids": "actor_id",
}


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
    "correlationId",
    "causationId",
    "actorId",
    "occurredAfter",
    "occurredUntil",
    "recordedAfter",
    "recordedUntil",
    "archive",
    *_INTERNAL,
)


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
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
    scan: ScanSpec
    payload: Literal["json", "variant"] = "json"
    partitions: int | None = None
    starting_position: int | Literal["earliest", "latest"] = "earliest"
    ending_position: int | None = None
    max_batch_events: int | None = None
    archive: str | None = None
    watermarks: bool = False
    record_column: bool = False


def parse_source_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse and validate the options of a read.

    Args:
        given: Options as Spark passes them; names are case-insensitive.

    Raises:
        InvalidArgument: An option is unknown, or its value is invalid.
    """
    found = normalize_options(given, SOURCE_OPTIONS)
    url = found.get("url")
    if not url:
        raise option_error("url", "is required: the URL of the log, such as sqlite:///app.db")
    parse_database_url(url)  # raises if the URL is invalid
    return SourceOptions(
        url=url,
        scan=_parse_scan(found),
        payload=_parse_payload(found.get("payload", "json")),
        partitions=parse_number(found, "partitions", minimum=1),
        starting_position=_parse_starting(found),
        ending_position=parse_number(found, "endingPosition"),
        max_batch_events=parse_number(found, "maxEventsPerBatch", minimum=1),
        archive=found.get("archive"),
        watermarks=parse_flag(found, "marks"),
        record_column=parse_flag(found, "packed"),
    )


def normalize_options(given: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
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
            raise option_error(
                key[:80], f"is not an option of the format seriatim; options: {documented}"
            )
        found[name] = value
    return found


def _parse_scan(found: Mapping[str, str]) -> ScanSpec:
    return ScanSpec(
        columns=_parse_columns(found.get("columns")),
        tenants=_parse_tenant(found),
        types=_parse_patterns(found, "types"),
        stream_types=_parse_patterns(found, "streamType"),
        stream_ids=_parse_id(found, "streamId"),
        correlation_ids=_parse_text(found, "correlationId"),
        causation_ids=_parse_text(found, "causationId"),
        actor_ids=_parse_text(found, "actorId"),
        occurred=_parse_interval(found, "occurred"),
        recorded=_parse_interval(found, "recorded"),
    )


def _parse_columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return EVENT_COLUMNS
    columns = tuple(split_list(text))
    for name in columns:
        if name not in EVENT_COLUMNS:
            msg = (
                f"contains {name!r:.80}, which is not a column; columns: {', '.join(EVENT_COLUMNS)}"
            )
            raise option_error("columns", msg)
    if not columns or len(set(columns)) < len(columns):
        raise option_error("columns", "must name at least one column, and none twice")
    return columns


def split_list(text: str) -> list[str]:
    """Parse a list of names: comma-separated, or a JSON list for names that contain commas."""
    if text.lstrip().startswith("["):
        try:
            return msgspec.json.decode(text, type=list[str])
        except msgspec.DecodeError:
            pass  # not JSON: a name may start with a bracket
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_patterns(found: Mapping[str, str], option: str) -> NameFilter | None:
    if option not in found:
        return None
    patterns = split_list(found[option])
    for pattern in patterns:
        if problem := pattern_problem(_check_id(option, pattern)):
            raise option_error(option, problem)
    return NameFilter.parse(patterns)


def _parse_id(found: Mapping[str, str], option: str) -> NameFilter | None:
    if option not in found:
        return None
    return NameFilter((_check_id(option, found[option]),))


def _parse_text(found: Mapping[str, str], option: str) -> NameFilter | None:
    if option not in found:
        return None
    if problem := text_problem(found[option]):
        raise option_error(option, problem)
    return NameFilter((found[option],))


def _parse_tenant(found: Mapping[str, str]) -> NameFilter | None:
    if "tenant" not in found:
        return None
    return NameFilter((check_tenant(found["tenant"], "tenant"),))


def _check_id(option: str, value: str) -> str:
    if problem := id_problem(value):
        raise option_error(option, problem)
    return value


def _parse_interval(found: Mapping[str, str], prefix: str) -> Interval:
    bounds: list[int | None] = []
    for option in (f"{prefix}After", f"{prefix}Until"):
        text = found.get(option)
        if text is not None and (problem := time_problem(text)):
            raise option_error(option, f"{problem}, such as 2026-01-31T12:00:00Z")
        bounds.append(None if text is None else parse_us(text))
    return Interval(*bounds)


def _parse_starting(found: Mapping[str, str]) -> int | Literal["earliest", "latest"]:
    text = found.get("startingPosition", EARLIEST).lower()
    if text == EARLIEST:
        return "earliest"
    if text == LATEST:
        return "latest"
    try:
        return parse_number(found, "startingPosition") or 0
    except InvalidArgument:
        raise option_error("startingPosition", "must be a position, earliest or latest") from None


def _parse_payload(text: str) -> Literal["json", "variant"]:
    if text == "json":
        return "json"
    if text == "variant":
        return "variant"
    raise option_error("payload", "must be json or variant")


def parse_number(found: Mapping[str, str], option: str, *, minimum: int = 0) -> int | None:
    """Parse a whole-number option; None if it is not given.

    Raises:
        InvalidArgument: The text is not a whole number, or is below `minimum`.
    """
    text = found.get(option)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or not minimum <= int(text) <= MAX_POSITION:
        raise option_error(option, f"must be a whole number of at least {minimum}")
    return int(text)


def parse_flag(found: Mapping[str, str], option: str) -> bool:
    """Parse a boolean option; False if it is not given.

    Raises:
        InvalidArgument: The text is neither true nor false.
    """
    text = found.get(option, "false").lower()
    if text not in ("true", "false"):
        raise option_error(option, "must be true or false")
    return text == "true"


def option_error(option: str, problem: str) -> InvalidArgument:
    """Return the error for an invalid option; the message is `<option> <problem>`."""
    return InvalidArgument(f"{option} {problem}", details={"option": option})
