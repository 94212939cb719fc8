"""The pages of the console that are measured, with the parameters that make them hard."""

from dataclasses import dataclass
from urllib.parse import urlencode

from bench.console.consumers import HANDLER, PROJECTION
from bench.console.rows import (
    APPEND,
    BEGIN_US,
    BLOCK,
    ENDED_TYPE,
    LONG_STREAM,
    OTHER_TENANT,
    PRODUCER,
    RARE_TYPE,
    SMALL_TENANT,
    STEP_US,
    event_id_at,
)
from seriatim.console.streams import STEPS_MAX
from seriatim.core.event import DEFAULT_TENANT
from seriatim.core.times import format_us

_ORDER = 25 * APPEND + 1  # the first event of an order within the first mixture
_TRACE = 5 * APPEND + 1
_FACT = 21 * APPEND + 1


@dataclass(frozen=True)
class MeasuredPage:
    """A page: its name in the report, its path after `/console`, and its parameters."""

    name: str
    path: str
    params: tuple[tuple[str, str], ...] = ()

    @property
    def address(self) -> str:
        """The path and query of the page."""
        return f"/console{self.path}?{urlencode(self.params)}"


def list_pages(events: int) -> list[MeasuredPage]:
    """Return the pages to measure on a generated log of this size."""
    middle = events // 2
    time_from, time_until = (format_us(BEGIN_US + at * STEP_US) for at in (middle, middle + 5000))
    stream = {"type": LONG_STREAM[0], "id": LONG_STREAM[1]}
    return [
        _page("overview", "/"),
        _page("events, newest", "/events"),
        _page("events, oldest", "/events", order="oldest"),
        _page("events, in the middle", "/events", until=middle),
        _page("events, a page back", "/events", after=middle, back=1),
        _page("events of a frequent type", "/events", types="order.paid"),
        _page("events of a rare type", "/events", types=RARE_TYPE),
        _page("events of a type that ended", "/events", types=ENDED_TYPE),
        _page("query by a type that ended", "/query", run=1, types1=ENDED_TYPE, order="newest"),
        _page("events of a pattern", "/events", types="order.*"),
        _page("events of an absent type", "/events", types="order.lost"),
        _page("events of the long stream", "/events", **_stream_filter()),
        _page(
            "events of a type in the long stream",
            "/events",
            **_stream_filter(),
            types="ledger.debited",
            until=middle,
        ),
        _page(
            "events of a pattern in the long stream",
            "/events",
            **_stream_filter(),
            types="ledger.*",
        ),
        _page(
            "events of a window in the long stream",
            "/events",
            **_stream_filter(),
            recorded_after=time_from,
            recorded_until=time_until,
        ),
        _page("events of a large correlation", "/events", correlation_id="month-0000"),
        _page("events of a frequent cause", "/events", causation_id=event_id_at(1)),
        _page("events of a busy actor", "/events", actor_id="importer", order="oldest"),
        _page("events of a customer", "/events", actor_id="c-000000"),
        _page(
            "events of a window in time",
            "/events",
            recorded_after=time_from,
            recorded_until=time_until,
        ),
        _page("events of the second tenant", "/events", tenant=OTHER_TENANT, until=middle),
        _page("events of the small tenant", "/events", tenant=SMALL_TENANT),
        _page("event of an order", "/event", id=event_id_at(_ORDER + 1)),
        _page("event with many effects", "/event", id=event_id_at(1)),
        _page("event of the long stream", "/event", position=_last_of_long_stream(middle)),
        _page("event of a trace", "/event", id=event_id_at(_TRACE)),
        _page("stream, short", "/stream", type="order", id="o-00000000"),
        _page("stream, long, newest", "/stream", **stream, order="newest"),
        _page("stream, long, in the middle", "/stream", **stream, after=middle),
        _page("stream, long, first steps", "/stream", **stream, projection="aggregate_states"),
        _page(
            "stream, long, last steps",
            "/stream",
            **stream,
            projection="aggregate_states",
            step=STEPS_MAX - 10,
        ),
        _page("query form", "/query"),
        _page("query by type", "/query", run=1, types1="order.paid", order="newest"),
        _page("query by stream", "/query", run=1, streams1="/".join(LONG_STREAM)),
        _page(
            "query by stream, in the middle",
            "/query",
            run=1,
            streams1="/".join(LONG_STREAM),
            order="newest",
            until=middle,
            head=events,
        ),
        _page("query by tag", "/query", run=1, tags1="customer:c-000000"),
        _page("query by two tags", "/query", run=1, tags1="express\ncustomer:c-000000"),
        _page(
            "query by type and payload",
            "/query",
            run=1,
            types1="order.paid",
            payload1='{"currency":"EUR"}',
        ),
        _page("why", "/why"),
        _page("why, by key", "/why", idempotency_key="0/1", producer_id=PRODUCER),
        _page("traces", "/traces"),
        _page("traces, few match", "/traces", outcome="abandoned"),
        _page("trace", "/trace", id="t-00000000"),
        _page("projections", "/projections"),
        _page("projection", "/projection", name=PROJECTION),
        _page("projection, confirmation", "/projection/retry-all", name=PROJECTION),
        _page("handlers", "/handlers"),
        _page("handler", "/handler", name=HANDLER),
        _page(
            "handler, a stream type", "/handler", name=HANDLER, status="dead", event_type="page.*"
        ),
        _page(
            "handler, one event", "/handler/entry", name=HANDLER, event_id=event_id_at(_FACT + 1)
        ),
        _page("handler, confirmation", "/handler/confirm", name=HANDLER, action="retry"),
        _page("topics", "/topics"),
        _page("access", "/access"),
        _page("journal", "/journal"),
        _page("journal of a tenant", "/journal", affected=DEFAULT_TENANT),
    ]


def _stream_filter() -> dict[str, str]:
    return {"stream_type": LONG_STREAM[0], "stream_id": LONG_STREAM[1]}


def _last_of_long_stream(position: int) -> int:
    """Return the position of an event of the long stream at or before a position."""
    return max(0, position - 1) // (BLOCK * APPEND) * BLOCK * APPEND + 1


def _page(name: str, path: str, /, **params: object) -> MeasuredPage:
    return MeasuredPage(name, path, tuple((key, str(value)) for key, value in params.items()))
