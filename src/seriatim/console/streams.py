"""One stream: its history, its next number, and its state event by event."""

from __future__ import annotations

from typing import Any

import msgspec

from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.console.pager import parse_number, read_event_page
from seriatim.console.stepper import StepPage, Stepper, find_key, to_event_record
from seriatim.core.errors import Forbidden, InvalidArgument, NotFound
from seriatim.core.event import StreamRef
from seriatim.core.kinds import BUILT_IN_KINDS, DEFAULT_STREAM_KIND
from seriatim.core.projection import Projection

STEPS_MAX = 2000  # events of a stream that the stepper folds
STEPS_PAGE = 10
_READ_EVENTS = 500  # of one read of the stepper


class StreamStatus(msgspec.Struct, frozen=True):
    """Whether a stream accepts events, and the number of the next one.

    Attributes:
        last_event: The last event that the caller may read.
        next_seq: The number of the next event; None if the caller may not read every event.
        closed: Whether the stream is closed; None if the caller may not read its declaration.
    """

    last_event: dict[str, Any]
    next_seq: int | None
    closed: bool | None


async def show_stream(page: ConsolePage) -> ConsoleResponse:
    """Show the history of a stream, and the state before and after each event."""
    stream = page.params.get("type", ""), page.params.get("id", "")
    if not all(stream):
        msg = "name a stream by its type and its id"
        raise InvalidArgument(msg, details={"argument": "type"})
    filters = {"stream_type": stream[0], "stream_id": stream[1]}
    newest_first = page.params.get("order") == "newest"
    status = await read_status(page, stream)
    available = {
        projection.name: projection
        for projection in page.projections
        if find_key(projection, stream) is not None
    }
    selected = available.get(page.params.get("projection", ""))
    stepper = None if selected is None else await read_steps(page, stream, selected)
    return await page.render(
        "stream.html",
        stream=stream,
        standing=status,
        newest_first=newest_first,
        link_params={"type": stream[0], "id": stream[1], "order": page.params.get("order", "")},
        event_page=await read_event_page(page, dict(filters), newest_first=newest_first),
        available=list(available),
        by_key=[projection for projection in page.projections if projection.name not in available],
        stepper=stepper,
        steps_page=STEPS_PAGE,
        steps_max=STEPS_MAX,
    )


async def read_status(page: ConsolePage, stream: StreamRef) -> StreamStatus:
    """Return the last event of a stream, its next number, and whether it is closed.

    Raises:
        NotFound: The stream has no event that the caller may read.
    """
    response = await page.get(
        "/v1/events", stream_type=stream[0], stream_id=stream[1], newest_first=True, limit=1
    )
    if not response["records"]:
        msg = "there is no stream with this type and id that you may read"
        raise NotFound(msg, details={"stream_type": stream[0], "stream_id": stream[1]})
    last = response["records"][0]
    if page.caller.types is not None:  # events of other types may follow
        return StreamStatus(last, None, None)
    closing = await _read_closing_types(page, stream[0])
    closed = None if closing is None else last["event_type"] in closing
    return StreamStatus(last, last["stream_seq"] + 1, closed)


async def _read_closing_types(page: ConsolePage, stream_type: str) -> tuple[str, ...] | None:
    """Return the types that close streams of a type; None if they cannot be read."""
    if (built_in := BUILT_IN_KINDS.get(stream_type)) is not None:
        return built_in.closing_types
    try:
        kinds = (await page.get("/v1/declarations"))["kinds"]
    except Forbidden:
        return None
    declared = {kind["name"]: tuple(kind["closing_types"]) for kind in kinds}
    return declared.get(stream_type, DEFAULT_STREAM_KIND.closing_types)


async def read_steps(page: ConsolePage, stream: StreamRef, projection: Projection) -> StepPage:
    """Fold a stream from its first event up to the displayed steps, at most `STEPS_MAX`."""
    first = min(parse_number(page, "step") or 0, STEPS_MAX - 1)
    key = find_key(projection, stream)
    tenant_id = page.request.tenant_id
    stepper = Stepper(projection, tenant_id, key or "", first=first, count=STEPS_PAGE)
    last, total, end = 0, 0, min(first + STEPS_PAGE, STEPS_MAX)
    while total < end:
        records = await _read_after(page, stream, last, min(_READ_EVENTS, end - total))
        if not records:
            break
        await page.app.service.run_for_tenant(tenant_id, _run_stepper, stepper, records)
        last, total = records[-1]["position"], total + len(records)
    more = total == end and bool(await _read_after(page, stream, last, 1))
    failed = stepper.fold.stopped or bool(stepper.fold.parked)
    return StepPage(
        projection=projection.name,
        steps=stepper.steps,
        first=first,
        total=total,
        more=more and end < STEPS_MAX,
        cut=more and end == STEPS_MAX,
        stopped=failed,
    )


async def _read_after(
    page: ConsolePage, stream: StreamRef, after: int, limit: int
) -> list[dict[str, Any]]:
    response = await page.get(
        "/v1/events", stream_type=stream[0], stream_id=stream[1], after=after, limit=limit
    )
    records: list[dict[str, Any]] = response["records"]
    return records


def _run_stepper(stepper: Stepper, records: list[dict[str, Any]]) -> None:
    stepper.run(map(to_event_record, records))


ROUTES: tuple[PageRoute, ...] = (PageRoute(method="GET", path="/stream", show=show_stream),)
