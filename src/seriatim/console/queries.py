"""Query: a form for filters and predicates, the results, and the indexes that find them."""

from __future__ import annotations

from typing import Any

from seriatim.console.calls import CallContext, make_query_calls
from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.console.pager import PAGE_EVENTS, parse_number
from seriatim.core.canonical import parse_strict_json
from seriatim.core.errors import (
    InvalidArgument,
    InvalidQuery,
    LimitExceeded,
    TimedOut,
    ValidationError,
)

FILTERS = 3  # in the form; a query in JSON has more
_FIELDS = ("types", "tags", "streams", "payload")


async def show_query(page: ConsolePage) -> ConsoleResponse:
    """Show the form of a query, and the result of the query that the address contains."""
    error, status, result, query, calls = "", 200, None, None, None
    if page.params.get("run") == "1":
        try:
            query = parse_query_form(page.params)
            calls = make_query_calls(CallContext.of(page), query, PAGE_EVENTS)
            result = await _run_query(page, query)
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
        following=None if result is None else _find_next_page(page, result),
        link_params=link_params,
    )


async def _run_query(page: ConsolePage, query: dict[str, Any]) -> Any:
    body: dict[str, Any] = {
        "query": query,
        "limit": PAGE_EVENTS,
        "newest_first": page.params.get("order") == "newest",
        "explain": True,
    }
    for name in ("after", "until", "head"):
        if (value := parse_number(page, name)) is not None:
            body[name] = value
    return await page.post("/v1/query", body)


def _find_next_page(page: ConsolePage, result: Any) -> dict[str, int] | None:
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
