"""Type checkers accept valid calls of the public API and reject invalid ones."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
from mypy import api

import seriatim
from seriatim import Log, NewEvent
from seriatim.delivery.async_handlers import AsyncHandlers
from seriatim.delivery.handlers import Handlers
from seriatim.factory import AsyncLog
from seriatim.log.arguments import ReadFilters, make_read_spec
from seriatim.log.async_projections import AsyncProjections
from seriatim.log.catalogue import EventFields
from seriatim.log.projections import Projections
from seriatim.profiles.aggregates import Aggregates, AsyncAggregates
from seriatim.profiles.facts import AsyncFacts, Facts
from seriatim.profiles.traces import AsyncTraces, Traces
from seriatim.runs.follower import AsyncFollower, Follower

ROOT = Path(__file__).parents[2]

# Each line with a comment is refused, with that text in the error; all others are accepted.
CALLS = """
import msgspec

import seriatim
from seriatim import EventRecord, Filter, NewEvent, Query
from seriatim.testing import HandlerRunner, fold, given


class OrderPlaced(msgspec.Struct):
    total: int = 0


class Order(seriatim.Aggregate[OrderPlaced], stream_type="order"):
    def place(self, total: int) -> None:
        self.state.total = total
        self.record("order.placed", tag="x")  # Unexpected keyword argument "tag" for "record"


def call(log: seriatim.Log, record: EventRecord, receipts: seriatim.Handler) -> None:
    log.read(types=["x"], after=1, until=2, newest_first=True, limit=3, batch_size=4)
    log.read(typ=["x"])  # Unexpected keyword argument "typ" for "read"
    log.read(after="1")  # Argument "after" to "read"
    log.read_batches(batch_size=10, stream=("order", "7"), since_seq=1)
    log.read_batches(limits=10)  # Unexpected keyword argument "limits" for "read_batches"
    log.page(limit=10, scope="traces", correlation_id="c")
    log.page(scope="streams")  # Argument "scope" to "page"
    log.tail(Query(), after=1, idle_timeout=0.5)
    log.tail(afterr=1)  # Unexpected keyword argument "afterr" for "tail"
    log.subscribe("name", start="head", lease_s=5)
    log.subscribe("name", start="tail")  # Argument "start" to "subscribe"
    log.query(Query([Filter(types=["x"])]), limit=10)
    log.query(limits=10)  # Unexpected keyword argument "limits" for "query"
    log.decide(("order", "7"), lambda records: [], attempts=3)
    log.decide(("order", "7"), lambda records: [], attempt=3)  # Unexpected keyword argument
    log.append([NewEvent("x")], timeout=1.5)
    log.append([NewEvent("x")], timeout="soon")  # Argument "timeout" to "append"
    placed: OrderPlaced = log.catalogue.decode(record, OrderPlaced)
    number: int = log.catalogue.decode(record, OrderPlaced)  # Incompatible types in assignment
    log.catalogue.new_event(placed, stream=("order", "7"))
    log.catalogue.new_event(placed, steam=("order", "7"))  # Unexpected keyword argument "steam"
    log.facts.append_if([NewEvent("x")], Query(), None)
    log.facts.append_if([NewEvent("x")])  # Missing positional argument "context_query"
    log.facts.subscribe("name", pol_s=1.0)  # Unexpected keyword argument "pol_s"
    log.traces.list_events(trace_id="t-1", limit=5)
    log.traces.list_events(trace="t-1")  # Unexpected keyword argument "trace"
    done: int = log.handlers.run(receipts, batch_events=10).done
    log.handlers.run(receipts, batch=10)  # Unexpected keyword argument "batch" for "run"
    log.handlers.follow(receipts, "mailer")  # Argument 2 to "follow"
    log.aggregates.append([NewEvent("x")], org_id="acme", actor_id="u-1")
    log.aggregates.append([NewEvent("x")], actor=1)  # Unexpected keyword argument "actor"
    log.aggregates.for_request(actor="u-1")  # Unexpected keyword argument "actor"
    total: int = log.aggregates.load(Order, "7").state.total
    log.aggregates.load(Order, "7").state.totals  # "OrderPlaced" has no attribute "totals"
    log.aggregates.load(Order, "7", after_aggregate_seq=1)  # No overload variant of "load"
    log.aggregates.execute(Order, "7", lambda order: order.place(1), org_id="acme")
    log.aggregates.execute(Order, "7", lambda order: order.pay(1))  # has no attribute "pay"
    log.aggregates.execute(Order, "7", Order.place)  # Argument 3 to "execute"
    log.aggregates.save(Order("7"), actor="u-1")  # Unexpected keyword argument "actor"
    given([NewEvent("x")]).when(lambda records: []).then_nothing()
    given([NewEvent("x")], Order).when(lambda order: order.place(1)).then_raises(ValueError)
    given([NewEvent("x")], Order).when(lambda order: order.pay(1))  # has no attribute "pay"
    given([NewEvent("x")], Order, context=("order", "7"))  # No overload variant of "given"
    fold("seats", [])  # Argument 1 to "fold"
    HandlerRunner("mails")  # Argument 1 to "HandlerRunner"
    seriatim.open("memory:", tennant_id="x")  # Unexpected keyword argument "tennant_id"


async def call_async(log: seriatim.Log, receipts: seriatim.Handler) -> None:
    await log.aio.handlers.run(receipts, redeclare=True)
    await log.aio.handlers.run(receipts, redeclare="x")  # Argument "redeclare" to "run"
    log.aio.for_tenant("acme").handlers.follow(receipts, live=True)  # Unexpected keyword argument
    async for batch in log.aio.read_batches(batch_size=10):
        print(batch[0].position)
    log.aio.read_batches(foo=1)  # Unexpected keyword argument "foo" for "read_batches"
    log.aio.read(typ=["x"])  # Unexpected keyword argument "typ" for "read"
    await log.aio.page(after=1, limit=2)
    await log.aio.page(after="1")  # Argument "after" to "page"
    await log.aio.query(limits=1)  # Unexpected keyword argument "limits"
    await log.aio.append([NewEvent("x")], timeout="soon")  # Argument "timeout" to "append"
    log.aio.tail(afterr=1)  # Unexpected keyword argument "afterr"
    head: int = await log.aio.call(log.head)
    await log.aio.call(log.event, 7)  # Argument 2 to "call"
    await log.facts.aio.append_if([NewEvent("x")], Query(), None)
    await log.facts.aio.append_if([NewEvent("x")])  # Missing positional argument
    await log.facts.aio.appendd([NewEvent("x")])  # has no attribute "appendd"
    text: str = await log.traces.aio.get_next_trace_seq("t-1")  # Incompatible types
    async for events in log.traces.aio.iter_event_batches(batch_size=10):
        print(events[0].log_seq + head)
    await log.aggregates.aio.load("order", "7", org="acme")  # No overload variant of "load"
"""


def test_invalid_calls_are_rejected(tmp_path: Path) -> None:
    """Mypy reports an error for each invalid call, and no other."""
    program = tmp_path / "calls.py"
    program.write_text(CALLS)
    options = ["--strict", "--no-pretty", "--hide-error-context"]
    config = [f"--config-file={ROOT}/pyproject.toml", f"--cache-dir={ROOT}/.mypy_cache"]
    output, problems, _ = api.run([*options, *config, str(program)])
    reported = {
        int(line): message for line, message in re.findall(r"calls\.py:(\d+): error: (.*)", output)
    }
    expected = {
        number: text.partition("  # ")[2]
        for number, text in enumerate(CALLS.splitlines(), 1)
        if "  # " in text
    }

    assert problems == ""
    assert sorted(reported) == sorted(expected), output
    for number, text in expected.items():
        assert text in reported[number]


def test_filters_of_reads_agree() -> None:
    """Every read has the filters that `make_read_spec` validates, with types and defaults."""
    checked = inspect.signature(make_read_spec).parameters
    filters = {name: checked[name] for name in list(checked)[3:]}
    types = get_type_hints(make_read_spec)

    assert next(iter(filters)) == "scope"
    assert get_type_hints(ReadFilters) == {name: types[name] for name in filters}
    for owner in (Log, AsyncLog):
        for name in ("page", "read", "read_batches"):
            parameters = inspect.signature(getattr(owner, name)).parameters
            assert filters.items() <= parameters.items(), (owner, name)


@pytest.mark.parametrize("read", ["page", "read", "read_batches"])
def test_unknown_filters_are_named(read: str) -> None:
    """A misspelled filter raises a `TypeError` that lists the filters, before anything is read."""
    with seriatim.open("memory:") as log, pytest.raises(TypeError, match=r"'typ'.*, types, app_id"):
        getattr(log, read)(typ=["x"])


def test_fields_of_bound_classes_agree() -> None:
    """`new_event` takes the fields of an event that its instance does not set."""
    fields = get_type_hints(NewEvent)
    for name in ("event_type", "payload", "event_version"):
        del fields[name]

    assert get_type_hints(EventFields) == fields
    assert set(fields) < set(msgspec.structs.asdict(NewEvent("x")))


def test_help_of_the_package_is_an_overview() -> None:
    """`help(seriatim)` lists methods of a log that exist, without addresses of objects."""
    overview = inspect.getdoc(seriatim) or ""
    rows = re.findall(r"^    (\w+(?:, \w+)*)   ", overview, re.MULTILINE)
    calls = [name for row in rows for name in row.split(", ")]

    assert {"append", "read", "subscribe", "aio", "facts"} <= set(calls)
    with seriatim.open("memory:") as log:
        assert all(hasattr(log, name) for name in calls)
    assert " at 0x" not in str(inspect.signature(seriatim.open))


def test_help_lists_parameters() -> None:
    """The signature of a read lists its filters, also on asyncio."""
    read = str(inspect.signature(AsyncLog.read))

    assert "types: 'Sequence[str] | None' = None" in read
    assert read.endswith("-> 'AsyncGenerator[EventRecord, None]'")


@pytest.mark.parametrize(
    ("blocking", "on_asyncio"),
    [
        (Log, AsyncLog),
        (Facts, AsyncFacts),
        (Traces, AsyncTraces),
        (Aggregates, AsyncAggregates),
        (Projections, AsyncProjections),
        (Handlers, AsyncHandlers),
        (Follower, AsyncFollower),
    ],
)
def test_asyncio_methods_have_the_same_parameters(blocking: type, on_asyncio: type) -> None:
    """Each asyncio method has the parameters of the blocking one, with the same defaults."""
    names = {name for name in vars(on_asyncio) if not name.startswith("_")} & set(dir(blocking))
    methods = [name for name in names if inspect.isfunction(getattr(blocking, name))]

    assert methods
    for name in methods:
        expected, found = (
            [
                (parameter.name, parameter.kind, parameter.default)
                for parameter in inspect.signature(getattr(owner, name)).parameters.values()
            ]
            for owner in (blocking, on_asyncio)
        )
        assert found == expected, name
