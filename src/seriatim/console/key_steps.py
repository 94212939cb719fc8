"""The state of one key of a projection, event by event, for keys of every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.console.pager import parse_number
from seriatim.console.stepper import StepPage, Stepper, to_event_record
from seriatim.console.streams import STEPS_MAX, STEPS_PAGE
from seriatim.core.canonical import canonical_text, parse_strict_json
from seriatim.core.errors import InvalidArgument, NotFound, ValidationError
from seriatim.core.event import EventRecord
from seriatim.core.patterns import NameFilter
from seriatim.core.projection import STREAM_KEY, Projection, parse_key_path
from seriatim.core.query import ID_FIELDS

READS_MAX = 20  # of one page: it folds from the first event of the key
READ_EVENTS = 500

Records = list[dict[str, Any]]


async def show_steps(page: ConsolePage) -> ConsoleResponse:
    """Show a form for the key, and the state of the key before and after each of its events."""
    name, key = page.params.get("name", ""), page.params.get("key", "")
    projection = next((candidate for candidate in page.projections if candidate.name == name), None)
    if projection is None or projection.is_frame:
        msg = "the service was not started with a fold projection of this name"
        raise NotFound(msg, details={"projection": name})
    return await page.render(
        "projection_steps.html",
        projection=projection,
        key=key,
        key_description=describe_key(projection),
        stepper=await read_steps(page, projection, key) if key else None,
        index_hint=_describe_index(projection),
        restricted=page.caller.types is not None,
        steps_page=STEPS_PAGE,
        steps_max=STEPS_MAX,
    )


def describe_key(projection: Projection) -> str:
    """Describe how a projection determines the key of an event."""
    key = projection.key
    if callable(key):
        return "computed by a function of the projection"
    if key == STREAM_KEY:
        return "its stream, as type:id"
    return f"the value of {key}" + (", after upcasting" if projection.upcasters else "")


def _describe_index(projection: Projection) -> str:
    """Return the payload indexes that would find the events of a key, empty if there are none."""
    if make_query(projection, "x") is None:
        return ""
    path = str(projection.key).removeprefix("payload").removeprefix(".")
    return ", ".join(f"{path} of {name}" for name in projection.events)


def selects(projection: Projection, key: str, event: EventRecord) -> bool:
    """Return whether a projection folds an event into the row of a key."""
    types = projection.stream_types
    if types is not None and event.stream_type not in types:
        return False
    if not NameFilter.parse(projection.events).allows(event.event_type):
        return False
    try:
        return projection.extract_key(event) == key
    except Exception:  # noqa: BLE001 - a key function may raise anything: the event has no key
        return False


def make_query(projection: Projection, key: str) -> dict[str, Any] | None:
    """Return a query that matches every event of a key, None if no payload index could answer it.

    The key is a text: an event with the number 5 has the key of one with the text "5". Upcasters
    may compute the key, and an index knows the payload as it was stored.
    """
    path = parse_key_path(projection.key) if isinstance(projection.key, str) else None
    if path is None or projection.upcasters or NameFilter.parse(projection.events).prefixes:
        return None
    predicates = []
    for value in _list_json_values(key):
        predicate = value
        for name in reversed(path):  # from the inside
            predicate = {name: predicate}
        predicates.append(predicate)
    return {"filters": [{"types": list(projection.events), "payload": predicates}]}


def _list_json_values(key: str) -> list[Any]:
    """Return the JSON values with this key: the text itself, and the value that it encodes."""
    try:
        value = parse_strict_json(key)
    except ValidationError:
        return [key]
    is_canonical = value is not None and not isinstance(value, str) and canonical_text(value) == key
    return [key, value] if is_canonical else [key]


async def read_steps(page: ConsolePage, projection: Projection, key: str) -> StepPage:
    """Fold the events of a key up to the displayed steps.

    At most `STEPS_MAX` events are folded, in at most `READS_MAX` reads.
    """
    first = min(parse_number(page, "step") or 0, STEPS_MAX - 1)
    end = min(first + STEPS_PAGE, STEPS_MAX)
    tenant_id = page.request.tenant_id
    stepper = Stepper(projection, tenant_id, key, first=first, count=STEPS_PAGE)
    head = (await page.get("/v1/log"))["head"]  # fixed: a busy log must not prolong the search
    query = await _find_query(page, projection, key)
    pages = (
        _search_by_scan(page, projection, key, head)
        if query is None
        else _search_by_query(page, query, head)
    )
    total, scanned, more = 0, 0, False
    async for records, read_until in pages:
        scanned = read_until
        folded, more = await page.app.service.run_for_tenant(
            tenant_id, _fold, stepper, projection, key, records, end - total
        )
        total += folded
        if more:
            break
    return StepPage(
        projection=projection.name,
        steps=stepper.steps,
        first=first,
        total=total,
        more=more and end < STEPS_MAX,
        cut=more and end == STEPS_MAX,
        stopped=stepper.fold.stopped or bool(stepper.fold.parked),
        searched=None if more or scanned >= head else scanned,
        indexed=query is not None,
    )


def _fold(
    stepper: Stepper, projection: Projection, key: str, records: Records, limit: int
) -> tuple[int, bool]:
    """Fold at most `limit` events of the key; return their number, and whether there are more."""
    events = [event for event in map(to_event_record, records) if selects(projection, key, event)]
    stepper.run(events[:limit])
    return min(len(events), limit), len(events) > limit


async def _find_query(page: ConsolePage, projection: Projection, key: str) -> dict[str, Any] | None:
    """Return a query that payload indexes answer, None if there is none."""
    query = make_query(projection, key)
    if query is None:
        return None
    body = {"query": query, "limit": 1, "explain": True}
    try:
        access = (await page.post("/v1/query", body))["access"]
    except InvalidArgument:  # the key is no valid predicate
        return None
    return query if all(path["index"] == "payload" for path in access) else None


async def _search_by_query(
    page: ConsolePage, query: dict[str, Any], head: int
) -> AsyncIterator[tuple[Records, int]]:
    """Yield pages of a query with the position up to which each has searched."""
    after = 0
    for _ in range(READS_MAX):
        body = {"query": query, "after": after, "head": head, "limit": READ_EVENTS}
        response = await page.post("/v1/query", body)
        after = response["last_returned_position"] if response["more"] else head
        yield response["records"], after
        if after >= head:
            return


async def _search_by_scan(
    page: ConsolePage, projection: Projection, key: str, head: int
) -> AsyncIterator[tuple[Records, int]]:
    """Yield pages of events that may have the key, with the position up to which each was read."""
    filters: dict[str, Any] = {}
    if not NameFilter.parse(projection.events).matches_all:
        filters["types"] = list(projection.events)
    if projection.key in ID_FIELDS:
        filters[str(projection.key)] = key
    after = 0
    for _ in range(READS_MAX):
        response = await page.get(
            "/v1/events", after=after, until=head, limit=READ_EVENTS, **filters
        )
        records, after = response["records"], response["last_scanned"]
        yield records, after
        if after >= head:
            return


ROUTES: tuple[PageRoute, ...] = (
    PageRoute(method="GET", path="/projection/steps", show=show_steps),
)
