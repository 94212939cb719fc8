"""The options of the Spark source: read from text, checked, and refused by name."""

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

_INTERNAL = ("marks", "packed")
# As they are documented; Spark hands their names on in lower case.
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
    """What a read was asked for."""

    url: str
    scan: Scan
    payload: Literal["json", "variant"] = "json"
    partitions: int | None = None
    starting: int | Literal["earliest", "latest"] = "earliest"
    ending: int | None = None
    max_events: int | None = None
    archive: str | None = None
    marks: bool = False
    packed: bool = False  # whether a column of whole records is added


def source_options(given: Mapping[str, str]) -> Options:
    """Check the options of a read."""
    found = known_options(given, SOURCE_OPTIONS)
    url = found.get("url")
    if not url:
        raise bad("url", "is needed: the log's address, such as sqlite:///app.db")
    find_place(url)
    return Options(
        url=url,
        scan=_scan(found),
        payload=_payload(found.get("payload", "json")),
        partitions=number(found, "partitions", least=1),
        starting=_starting(found),
        ending=number(found, "endingPosition"),
        max_events=number(found, "maxEventsPerBatch", least=1),
        archive=found.get("archive"),
        marks=flag(found, "marks"),
        packed=flag(found, "packed"),
    )


def known_options(given: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Return the options under their documented names, or refuse the first unknown one."""
    names = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    for key, value in given.items():
        name = names.get(key.lower())
        if name is None:
            shown = ", ".join(sorted(set(names.values()) - set(_INTERNAL)))
            raise bad(key[:80], f"is no option of the format seriatim, which has: {shown}")
        found[name] = value
    return found


def _scan(found: Mapping[str, str]) -> Scan:
    return Scan(
        columns=_columns(found.get("columns")),
        tenants=_tenant(found),
        types=_names(found, "types"),
        stream_types=_names(found, "streamType"),
        stream_ids=_exact(found, "streamId"),
        occurred=_window(found, "occurred"),
        recorded=_window(found, "recorded"),
    )


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return NAMES
    wanted = tuple(listed(text))
    for name in wanted:
        if name not in NAMES:
            raise bad("columns", f"names {name!r:.80}; an event has: {', '.join(NAMES)}")
    if not wanted or len(set(wanted)) < len(wanted):
        raise bad("columns", "must name at least one column, and none twice")
    return wanted


def listed(text: str) -> list[str]:
    """Read a list: names between commas, or a JSON list, in which names may have commas."""
    if text.lstrip().startswith("["):
        try:
            return msgspec.json.decode(text, type=list[str])
        except msgspec.DecodeError:
            pass  # a name may begin with a bracket
    return [part.strip() for part in text.split(",") if part.strip()]


def _names(found: Mapping[str, str], option: str) -> Names | None:
    if option not in found:
        return None
    wanted = listed(found[option])
    for name in wanted:
        if problem := pattern_problem(_check_id(option, name)):
            raise bad(option, problem)
    return Names.of(wanted)


def _exact(found: Mapping[str, str], option: str) -> Names | None:
    if option not in found:
        return None
    return Names((_check_id(option, found[option]),))


def _tenant(found: Mapping[str, str]) -> Names | None:
    if "tenant" not in found:
        return None
    return Names((check_tenant(found["tenant"], "tenant"),))


def _check_id(option: str, value: str) -> str:
    if problem := id_problem(value):
        raise bad(option, problem)
    return value


def _window(found: Mapping[str, str], what: str) -> Window:
    moments: list[int | None] = []
    for option in (f"{what}After", f"{what}Until"):
        text = found.get(option)
        if text is not None and (problem := time_problem(text)):
            raise bad(option, f"{problem}, such as 2026-01-31T12:00:00Z")
        moments.append(None if text is None else instant_us(text))
    return Window(*moments)


def _starting(found: Mapping[str, str]) -> int | Literal["earliest", "latest"]:
    text = found.get("startingPosition", EARLIEST).lower()
    if text == EARLIEST:
        return "earliest"
    if text == LATEST:
        return "latest"
    try:
        return number(found, "startingPosition") or 0
    except InvalidArgument:
        raise bad("startingPosition", "must be a position, earliest or latest") from None


def _payload(text: str) -> Literal["json", "variant"]:
    if text == "json":
        return "json"
    if text == "variant":
        return "variant"
    raise bad("payload", "must be json or variant")


def number(found: Mapping[str, str], option: str, *, least: int = 0) -> int | None:
    """Read a whole number."""
    text = found.get(option)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= END:
        raise bad(option, f"must be a whole number from {least}")
    return int(text)


def flag(found: Mapping[str, str], option: str) -> bool:
    """Read true or false."""
    text = found.get(option, "false").lower()
    if text not in ("true", "false"):
        raise bad(option, "must be true or false")
    return text == "true"


def bad(option: str, problem: str) -> InvalidArgument:
    """Make the error for an option."""
    return InvalidArgument(f"{option} {problem}", details={"option": option})
