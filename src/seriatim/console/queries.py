"""Query: a form for filters and predicates, the results, and the indexes that find them."""

from __future__ import annotations

from typing import Any

from seriatim.console.calls import CallContext, make_query_calls
from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.console.pager import PAGE_EVENTS, parse_number
from seriatim.console.search import SearchResult, search_events
from seriatim.core.canonical import parse_strict_json
from seriatim.core.errors import (
    InvalidArgument,
    InvalidQuery,
    LimitExceeded,
    TimedOut,
    ValidationError,
)

UNINDEXED_MAX = 100_000  # positions; a longer log is searched in parts if no index answers
FILTERS = 3  # in the form; a query in JSON has more
_FIELDS = ("types", "tags", "streams", "payload")


async def show_query(page: ConsolePage) -> ConsoleResponse:
    """Show the form of a query, and the result of the query that the address contains."""
    error, status, result, query, calls, search = "", 200, None, None, None, None
    if page.params.get("run") == "1":
        try:
            query = parse_query_form(page.params)
            calls = make_query_calls(CallContext.of(page), query, PAGE_EVENTS)
            result, search = await _run_query(page, query)
        except (InvalidArgument, InvalidQuery, LimitExceeded, TimedOut) as problem:
            error = problem.message
            status = page.app.service.problem(problem, page.request.request_id).status
    names = [f"{field}{number}" for number in range(1, FILTERS + 1) for field in _FIELDS]
    values = {name: page.params.get(name, "") for name in names}
    common = ("query", "min_position", "order", "run")
    link_params = {name: page.params[name] for name in (*names, *common) if page.params.get(name)}
    return await page.render(
        "query.html",
        status=status,
        error=error,
        values=values,
        filters=FILTERS,
        json_query=page.params.get("query", ""),
        min_position=page.params.get("min_position", ""),
        newest_first=page.params.get("order") == "newest",
        query=query,
        calls=calls,
        result=result,
        search=search,
        continued=None if result is None or search is None else _find_continuation(result, search),
        following=None if result is None else _find_next_page(page, result),
        link_params=link_params,
    )


async def _run_query(
    page: ConsolePage, query: dict[str, Any]
) -> tuple[dict[str, Any], SearchResult | None]:
    """Return a page of the result, and how far the search has got if no index answers it."""
    newest_first = page.params.get("order") == "newest"
    positions = {
        name: value
        for name in ("after", "until", "head")
        if (value := parse_number(page, name)) is not None
    }
    if _may_read_others(query):
        head = positions.get("head", 0) or (await page.get("/v1/log"))["head"]
        access = await _explain_start(page, query) if head > UNINDEXED_MAX else []
        if any(_reads_others(query, path) for path in access):
            return await _search_query(page, query, positions | {"head": head}, access)
    body = positions | {
        "query": query,
        "limit": PAGE_EVENTS,
        "newest_first": newest_first,
        "explain": True,
    }
    result: dict[str, Any] = await page.post("/v1/query", body)
    return result, None


def _may_read_others(query: dict[str, Any]) -> bool:
    """Return whether a filter has conditions that an index may not evaluate."""
    filters = query.get("filters")
    return isinstance(filters, list) and any(
        isinstance(event_filter, dict)
        and (event_filter.get("payload") or "actor_id" in event_filter)
        for event_filter in filters
    )


def _reads_others(query: dict[str, Any], path: dict[str, Any]) -> bool:
    """Return whether an access path may read many events that do not match its filter."""
    event_filter = query["filters"][path["filter"]]
    if event_filter.get("payload"):
        return not path["exact"]
    return path["index"] == "actor" and bool(event_filter.get("types"))


async def _explain_start(page: ConsolePage, query: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the access paths of a query for the first event of the log.

    A payload index that was declared later does not find the events before it.
    """
    body = {"query": query, "head": 1, "limit": 1, "explain": True}
    access: list[dict[str, Any]] = (await page.post("/v1/query", body))["access"]
    return access


async def _search_query(
    page: ConsolePage,
    query: dict[str, Any],
    positions: dict[str, int],
    access: list[dict[str, Any]],
) -> tuple[dict[str, Any], SearchResult]:
    """Search a part of the snapshot for a page, and the newest match in its last positions."""
    newest_first, head = page.params.get("order") == "newest", positions["head"]
    minimum = query.get("min_position")
    after = max(positions.get("after", 0), minimum if isinstance(minimum, int) else 0)
    until = min(positions.get("until", head), head)
    search = await search_events(
        page, query, after=after, until=until, newest_first=newest_first, limit=PAGE_EVENTS
    )
    context = {name: value for name, value in query.items() if name != "min_position"}
    version = await search_events(
        page, context, after=0, until=head, newest_first=True, limit=1, budget_s=0
    )
    last = search.records[-1]["position"] if search.records else None
    result = {
        "records": search.records,
        "last_returned_position": last,
        "context_version": version.records[0]["position"] if version.records else None,
        "version_until": None if version.complete else version.first - 1,
        "head": head,
        "more": len(search.records) == PAGE_EVENTS and not search.complete,
        "access": access,
    }
    return result, search


def _find_continuation(result: dict[str, Any], search: SearchResult) -> dict[str, int] | None:
    """Return the parameters that go on with a search that was interrupted."""
    interrupted = not search.complete and len(search.records) < PAGE_EVENTS
    return {**search.following, "head": result["head"]} if interrupted else None


def _find_next_page(page: ConsolePage, result: dict[str, Any]) -> dict[str, int] | None:
    """Return the parameters of the next page of the same snapshot, None if there is none."""
    if not result["more"]:
        return None
    last = result["last_returned_position"]
    bound = {"until": last - 1} if page.params.get("order") == "newest" else {"after": last}
    return {**bound, "head": result["head"]}


def parse_query_form(params: dict[str, str]) -> dict[str, Any]:
    """Return the query of a form; a query in JSON takes precedence over its fields.

    Each field has one item per line: types, tags, streams as `type/id`, predicates as JSON.

    Raises:
        InvalidArgument: A field is malformed.
    """
    query: dict[str, Any] = {}
    if text := params.get("query", "").strip():
        parsed = parse_json_field(text, "query")
        if not isinstance(parsed, dict):
            raise _make_field_error("query", "must be a JSON object")
        query = parsed
    elif filters := [
        event_filter
        for number in range(1, FILTERS + 1)
        if (event_filter := _parse_filter(params, number))
    ]:
        query["filters"] = filters
    if minimum := params.get("min_position", "").strip().replace(",", ""):
        if not minimum.isascii() or not minimum.isdigit() or len(minimum) > len(str(1 << 63)):
            raise _make_field_error("min_position", "must be a whole number")
        query["min_position"] = int(minimum)
    return query


def _parse_filter(params: dict[str, str], number: int) -> dict[str, list[Any]]:
    """Return one filter of the form, empty if its fields are."""
    event_filter: dict[str, list[Any]] = {}
    for field in _FIELDS:
        name = f"{field}{number}"
        lines = [line for text in params.get(name, "").split("\n") if (line := text.strip())]
        if not lines:
            continue
        if field == "payload":
            event_filter[field] = [parse_json_field(line, name) for line in lines]
        elif field == "streams":
            event_filter[field] = [_parse_stream(line, name) for line in lines]
        else:
            event_filter[field] = lines
    return event_filter


def _parse_stream(line: str, name: str) -> list[str]:
    stream_type, slash, stream_id = line.partition("/")
    if not slash:
        raise _make_field_error(name, "must be a stream per line, as type/id")
    return [stream_type.strip(), stream_id.strip()]


def parse_json_field(text: str, name: str) -> Any:
    """Return the JSON value of a field of a form; raises `InvalidArgument` for other text."""
    try:
        return parse_strict_json(text)
    except ValidationError as problem:
        raise _make_field_error(name, f"must be JSON: {problem}") from None


def _make_field_error(name: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{name} {problem}", details={"argument": name})


ROUTES: tuple[PageRoute, ...] = (
    PageRoute(method="GET", path="/query", show=show_query, title="Query"),
)
