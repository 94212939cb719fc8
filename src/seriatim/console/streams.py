"""One stream: its history, its next number, and its state event by event."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.console.pager import parse_number, read_event_page
from seriatim.console.stepper import FoldCheckpoint, StepPage, Stepper, find_key
from seriatim.core.errors import Forbidden, InvalidArgument, NotFound
from seriatim.core.event import StreamRef
from seriatim.core.kinds import BUILT_IN_KINDS, DEFAULT_STREAM_KIND
from seriatim.core.projection import Projection
from seriatim.wire.messages import PageResponse
from seriatim.wire.records import from_wire_records

STEPS_MAX = 2000  # events of a stream that the stepper folds
STEPS_PAGE = 10
READ_EVENTS = 500  # of one read of the stepper; checkpoints are this far apart

_PAGE_WEIGHT = 2  # bytes of memory for each character of rendered steps

_decode_page = msgspec.json.Decoder(PageResponse).decode


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


# -- the steps


class StaleCheckpointError(Exception):
    """The log no longer has the events that a checkpoint was folded from."""


async def read_steps(page: ConsolePage, stream: StreamRef, projection: Projection) -> StepPage:
    """Fold a stream from its first event up to the displayed steps, at most `STEPS_MAX`.

    The fold continues at a checkpoint that another page has left.
    """
    reader = StepReader(page, stream, projection)
    while True:
        checkpoint = reader.find_checkpoint()
        try:
            return await reader.read(checkpoint)
        except StaleCheckpointError:  # an older copy of the log was restored
            reader.drop(checkpoint)


class FoldedPage(msgspec.Struct, frozen=True):
    """The result of folding one response.

    Attributes:
        last_position: The position of its last event.
        complete: Whether the displayed steps, or the events of the stream, are all folded.
        more: Whether the stream has events after the displayed steps.
        checkpoints: The fold after the events at which later pages are likely to begin.
    """

    last_position: int = 0
    complete: bool = False
    more: bool = False
    checkpoints: list[FoldCheckpoint] = []


class StepReader:
    """Reads and folds the events of a stream for one page.

    Args:
        page: The page.
        stream: The stream.
        projection: A projection with a key for this stream.
    """

    def __init__(self, page: ConsolePage, stream: StreamRef, projection: Projection) -> None:
        self._page = page
        self._stream = stream
        self._projection = projection
        self._tenant_id = page.request.tenant_id
        self._first = min(parse_number(page, "step") or 0, STEPS_MAX - 1)
        self._end = min(self._first + STEPS_PAGE, STEPS_MAX)
        # A token that is restricted to event types folds only the events that it may read.
        self._cached = page.caller.types is None

    def find_checkpoint(self) -> FoldCheckpoint | None:
        """Return the last checkpoint at or before the first displayed step."""
        if not self._cached:
            return None
        numbers = [self._first, *range(self._first // READ_EVENTS * READ_EVENTS, 0, -READ_EVENTS)]
        found = (self._page.cache.get(self._key(number)) for number in numbers)
        checkpoint: FoldCheckpoint | None = next(filter(None, found), None)
        return checkpoint

    def drop(self, checkpoint: FoldCheckpoint | None) -> None:
        """Forget a checkpoint."""
        if checkpoint is not None:
            self._page.cache.drop(self._key(checkpoint.number))

    def _key(self, number: int) -> tuple[object, ...]:
        return "steps", self._tenant_id, self._stream, self._projection.name, number

    async def read(self, start: FoldCheckpoint | None) -> StepPage:
        """Fold the events after a checkpoint up to the last displayed step.

        Raises:
            StaleCheckpointError: The log does not have the last event of the checkpoint.
        """
        key = find_key(self._projection, self._stream) or ""
        stepper = Stepper(
            self._projection,
            self._tenant_id,
            key,
            first=self._first,
            count=STEPS_PAGE,
            start=start,
        )
        folded, checkpoint, key_of_page = FoldedPage(), start, None
        while not folded.complete:
            boundary = (stepper.number // READ_EVENTS + 1) * READ_EVENTS
            until = self._end + 1 if self._end <= boundary else boundary
            limit = until - stepper.number
            body = await self._read_after(folded.last_position, limit, checkpoint)
            if until > self._end and not folded.last_position:
                # These events and the checkpoint before them determine the page.
                key_of_page = (*self._key(self._first), self._page.caller.tenant_id, _digest(body))
                kept: StepPage | None = self._page.cache.get(key_of_page)
                if kept is not None and self._cached:
                    return kept
            folded = await self._page.app.service.run_for_tenant(
                self._tenant_id, self._fold_page, stepper, body, limit, checkpoint
            )
            checkpoint = None
            self._keep(folded.checkpoints)
        result = StepPage(
            projection=self._projection.name,
            steps=stepper.steps,
            first=self._first,
            total=stepper.number,
            more=folded.more and self._end < STEPS_MAX,
            cut=folded.more and self._end == STEPS_MAX,
            stopped=stepper.fold.stopped or bool(stepper.fold.parked),
        )
        rendered = await self._page.render_part("steps_body.html", stepper=result)
        result = msgspec.structs.replace(result, body=rendered)
        if key_of_page is not None and self._cached:
            self._page.cache.put(key_of_page, result, _PAGE_WEIGHT * len(rendered))
        return result

    async def _read_after(self, after: int, limit: int, checkpoint: FoldCheckpoint | None) -> bytes:
        """Read events of the stream, beginning with the last one of the checkpoint."""
        if checkpoint is not None:
            after, limit = checkpoint.position - 1, limit + 1
        stream_type, stream_id = self._stream
        return await self._page.get_body(
            "/v1/events", stream_type=stream_type, stream_id=stream_id, after=after, limit=limit
        )

    def _fold_page(
        self, stepper: Stepper, body: bytes, limit: int, start: FoldCheckpoint | None
    ) -> FoldedPage:
        """Fold the events of a response, up to the last displayed step.

        Raises:
            StaleCheckpointError: It does not begin with the last event of the checkpoint `start`.
        """
        response = _decode_page(body)
        records = from_wire_records(response.records)
        if start is not None:
            if not records or records[0].event_id != start.event_id:
                raise StaleCheckpointError
            del records[0]
        more = len(records) > self._end - stepper.number
        has_ended = len(records) < limit and not response.cut
        del records[self._end - stepper.number :]
        if not records:
            return FoldedPage(complete=True, more=more)
        checkpoints = []
        before = max(0, self._first - stepper.number)
        for part in (records[:before], records[before:]):
            stepper.run(part)
            at_boundary = stepper.number % READ_EVENTS == 0
            if part and (at_boundary or stepper.number in (self._first, self._end)):
                checkpoints.append(stepper.save(part[-1]))
        return FoldedPage(records[-1].position, more or has_ended, more, checkpoints)

    def _keep(self, checkpoints: list[FoldCheckpoint]) -> None:
        if self._cached:
            for checkpoint in checkpoints:
                self._page.cache.put(self._key(checkpoint.number), checkpoint, checkpoint.weight)


def _digest(body: bytes) -> tuple[bytes, int]:
    """Return what identifies the events of a response, and the bound that cuts the steps."""
    return sha256(body).digest(), STEPS_MAX


ROUTES: tuple[PageRoute, ...] = (PageRoute(method="GET", path="/stream", show=show_stream),)
