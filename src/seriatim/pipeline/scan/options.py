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
        index: The index of this partition, from 0.
        count: The number of partitions.
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

_INTERNAL = ("watermarks", "records")  # set by the project's own jobs, not documented
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
        starting_position: The position before the first event, or where a stream starts.
        ending_position: The last position of a batch; None means the head.
        max_batch_events: The largest number of positions in one batch of a stream.
        archive: The location of an archive to read sealed positions from.
        watermarks: Whether every partition ends with a watermark row.
        record_column: Whether a column with whole encoded records is added.
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


def parse_source_options(raw: Mapping[str, str]) -> SourceOptions:
    """Parse and validate the options of a read.

    Args:
        raw: Options as Spark passes them; names are case-insensitive.

    Raises:
        InvalidArgument: An option is unknown, or its value is invalid.
    """
    options = normalize_options(raw, SOURCE_OPTIONS)
    url = options.get("url")
    if not url:
        raise option_error("url", "is required: the URL of the log, such as sqlite:///app.db")
    # Spark parses the options in the driver: an invalid URL fails here, not in every task.
    parse_database_url(url)
    return SourceOptions(
        url=url,
        scan=_parse_scan(options),
        payload=_parse_payload(options.get("payload", "json")),
        partitions=parse_number(options, "partitions", minimum=1),
        starting_position=_parse_starting(options),
        ending_position=parse_number(options, "endingPosition"),
        max_batch_events=parse_number(options, "maxEventsPerBatch", minimum=1),
        archive=options.get("archive"),
        watermarks=parse_flag(options, "watermarks"),
        record_column=parse_flag(options, "records"),
    )


def normalize_options(raw: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Return options under their documented names.

    Args:
        raw: Options with names in any case.
        known: The documented names.

    Raises:
        InvalidArgument: An option is unknown; the message lists the documented ones.
    """
    names = {name.lower(): name for name in known}
    options: dict[str, str] = {}
    for key, value in raw.items():
        name = names.get(key.lower())
        if name is None:
            documented = ", ".join(sorted(set(names.values()) - set(_INTERNAL)))
            raise option_error(
                key[:80], f"is not an option of the format seriatim; options: {documented}"
            )
        options[name] = value
    return options


def _parse_scan(options: Mapping[str, str]) -> ScanSpec:
    return ScanSpec(
        columns=_parse_columns(options.get("columns")),
        tenants=_parse_tenant(options),
        types=_parse_patterns(options, "types"),
        stream_types=_parse_patterns(options, "streamType"),
        stream_ids=_parse_id(options, "streamId"),
        correlation_ids=_parse_text(options, "correlationId"),
        causation_ids=_parse_text(options, "causationId"),
        actor_ids=_parse_text(options, "actorId"),
        occurred=_parse_interval(options, "occurred"),
        recorded=_parse_interval(options, "recorded"),
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


def _parse_patterns(options: Mapping[str, str], option: str) -> NameFilter | None:
    if option not in options:
        return None
    patterns = split_list(options[option])
    for pattern in patterns:
        if problem := pattern_problem(_check_id(option, pattern)):
            raise option_error(option, problem)
    return NameFilter.parse(patterns)


def _parse_id(options: Mapping[str, str], option: str) -> NameFilter | None:
    if option not in options:
        return None
    return NameFilter((_check_id(option, options[option]),))


def _parse_text(options: Mapping[str, str], option: str) -> NameFilter | None:
    if option not in options:
        return None
    if problem := text_problem(options[option]):
        raise option_error(option, problem)
    return NameFilter((options[option],))


def _parse_tenant(options: Mapping[str, str]) -> NameFilter | None:
    if "tenant" not in options:
        return None
    return NameFilter((check_tenant(options["tenant"], "tenant"),))


def _check_id(option: str, value: str) -> str:
    if problem := id_problem(value):
        raise option_error(option, problem)
    return value


def _parse_interval(options: Mapping[str, str], prefix: str) -> Interval:
    bounds: list[int | None] = []
    for option in (f"{prefix}After", f"{prefix}Until"):
        text = options.get(option)
        if text is not None and (problem := time_problem(text)):
            raise option_error(option, f"{problem}, such as 2026-01-31T12:00:00Z")
        bounds.append(None if text is None else parse_us(text))
    return Interval(*bounds)


def _parse_starting(options: Mapping[str, str]) -> int | Literal["earliest", "latest"]:
    text = options.get("startingPosition", EARLIEST).lower()
    if text == EARLIEST:
        return "earliest"
    if text == LATEST:
        return "latest"
    try:
        return parse_number(options, "startingPosition") or 0
    except InvalidArgument:
        raise option_error("startingPosition", "must be a position, earliest or latest") from None


def _parse_payload(text: str) -> Literal["json", "variant"]:
    if text == "json":
        return "json"
    if text == "variant":
        return "variant"
    raise option_error("payload", "must be json or variant")


def parse_number(options: Mapping[str, str], option: str, *, minimum: int = 0) -> int | None:
    """Parse a whole-number option; None if it is not given.

    Raises:
        InvalidArgument: The text is not a whole number, or is below `minimum`.
    """
    text = options.get(option)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or not minimum <= int(text) <= MAX_POSITION:
        raise option_error(option, f"must be a whole number of at least {minimum}")
    return int(text)


def parse_flag(options: Mapping[str, str], option: str) -> bool:
    """Parse a boolean option; False if it is not given.

    Raises:
        InvalidArgument: The text is neither true nor false.
    """
    text = options.get(option, "false").lower()
    if text not in ("true", "false"):
        raise option_error(option, "must be true or false")
    return text == "true"


def option_error(option: str, problem: str) -> InvalidArgument:
    """Return the error for an invalid option; the message is `<option> <problem>`."""
    return InvalidArgument(f"{option} {problem}", details={"option": option})
