"""Handlers on the local engine through a log: run and follow (G1 to G10, I10)."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import seriatim
from seriatim import (
    Conflict,
    EntryFilter,
    EventRecord,
    Handler,
    InvalidArgument,
    Log,
    LogIdentityChanged,
    NewEvent,
    RegistrySettings,
    RetryPolicy,
    TimedOut,
    handler,
)
from seriatim.delivery.async_handlers import AsyncHandlers
from seriatim.delivery.entries import DeadLetter
from seriatim.delivery.handlers import Handlers
from seriatim.delivery.registry import Registry
from seriatim.runs.follower import Follower
from seriatim.runs.job_loop import RunReport
from seriatim.telemetry import JobMetrics, Metrics, use_provider
from seriatim.testing.factories import wait_for

QUICK = RetryPolicy(attempts=3, base_s=0.02, cap_s=0.05)
LOCAL = pytest.mark.parametrize("log", ["sqlite"], indirect=True)
IN_MEMORY = pytest.mark.parametrize("log", ["memory", "sqlite"], indirect=True)


@pytest.fixture
def handlers(request: pytest.FixtureRequest, log: Log, tmp_path: Path) -> Handlers:
    """The handlers of the log: in its default registry, or in one beside a remote log."""
    if request.node.callspec.params["log"] == "http":
        return log.handlers_at(f"sqlite:///{tmp_path}/registry.db")
    return log.handlers


@pytest.fixture
def registry(handlers: Handlers) -> Iterator[Registry]:
    """The registry of the handlers."""
    with closing(handlers.open_registry()) as opened:
        yield opened


class Target:
    """A target of effects, which refuses some events."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.poison: set[str] = set()

    def __call__(self, event: EventRecord, _context: Any) -> None:
        """Apply the effect of an event."""
        if event.event_id in self.poison:
            raise ValueError("poison")
        self.effects.append(event.event_id)

    def handler(self, name: str = "mailer", **declaration: Any) -> Handler:
        """Return a handler that has its effects here."""
        given: dict[str, Any] = {"effect": "keyed", "retry": QUICK} | declaration
        return handler(name, **given)(self)


@pytest.fixture
def target() -> Target:
    """An empty target."""
    return Target()


def append(log: Log, *names: str, event_type: str = "order.placed") -> int:
    """Append events such as `a1`, the first one of stream `a`; return the last position."""
    events = [
        NewEvent(event_type, {"n": name}, stream=("order", name[0]), event_id=name)
        for name in names
    ]
    return log.append(events).last_position


def statuses(registry: Registry, **fields: Any) -> dict[str, str]:
    """Return the status of each event in the registry."""
    entries = registry.entries(EntryFilter(**fields), limit=10_000)
    return {one.event_id: one.status for one in entries}


# -- run


def test_a_run_handles_each_event_once(log: Log, handlers: Handlers, target: Target) -> None:
    """G3, G7, I10: without Spark a handler catches up; a second run has no further effect."""
    append(log, "a1", "b1", "a2")
    append(log, "n1", event_type="note.made")
    mailer = target.handler(events=["order.*"])

    assert (handlers.run(mailer).done, handlers.run(mailer).done) == (3, 0)
    append(log, "b2")
    assert handlers.run(mailer, batch_events=1).done == 1
    assert target.effects == ["a1", "b1", "a2", "b2"]


@pytest.mark.parametrize("effect", ["transactional", "keyed", "unsafe"])
def test_effects_of_each_kind(
    log: Log, handlers: Handlers, registry: Registry, effect: str
) -> None:
    """G7: each kind of effect happens once; a transactional one is written with its completion."""
    table = f"{registry.engine.schema_prefix}effects"
    with registry.engine.transaction() as session:
        session.run(f"create table {table} (event_id text primary key)")

    def write(event: EventRecord, context: Any) -> None:
        if effect == "transactional":
            context.connection.execute(f"insert into {table} values ('{event.event_id}')")
            return
        with registry.engine.transaction() as session:
            session.run(f"insert into {table} values ('{event.event_id}')")

    append(log, "a1", "b1", "a2")
    ledger = handler("ledger", effect=effect)(write)  # type: ignore[arg-type] # by its name
    assert (handlers.run(ledger).done, handlers.run(ledger).done) == (3, 0)
    with registry.engine.transaction(write=False) as session:
        rows = session.run(f"select event_id from {table} order by 1")
    assert rows == [("a1",), ("a2",), ("b1",)]


def test_filter_start_and_order(log: Log, handlers: Handlers, target: Target) -> None:
    """G4: a strict handler passes over excluded events and those before its start, in any batch."""
    append(log, "a1", "b1", "a2")
    append(log, "b2", "a3", event_type="order.seen")
    append(log, "a4", "b3", "c1")
    mailer = target.handler(events=["order.placed"], start=2)
    counts = handlers.run(mailer, batch_events=2)

    assert sorted(target.effects) == ["a2", "a4", "b3", "c1"]
    assert target.effects.index("a2") < target.effects.index("a4")
    assert (counts.done, counts.passed) == (4, 2)


def test_latest_wins_reads_its_events_only(
    log: Log, handlers: Handlers, registry: Registry, target: Target
) -> None:
    """G4: in latest_wins only selected events are read, and the cursor passes over the others."""
    append(log, "a1", "b1")
    head = append(log, "a2", "a3", event_type="order.seen")
    counts = handlers.run(target.handler(mode="latest_wins", events=["order.placed"]))

    assert (counts.done, counts.passed) == (2, 0)
    assert [cursor.position for cursor in registry.cursors()] == [head]


def test_a_poison_event_parks_its_stream(
    log: Log, handlers: Handlers, registry: Registry, target: Target
) -> None:
    """G5: failures are retried, then parked; a retry continues the stream in order."""
    append(log, "a1", "b1", "a2", "b2", "a3")
    target.poison = {"a2"}
    mailer = target.handler()

    def run_until_dead() -> bool:
        handlers.run(mailer)
        return statuses(registry)["a2"] == "dead"

    wait_for(run_until_dead)
    assert target.effects == ["a1", "b1", "b2"]
    assert statuses(registry) == {
        **dict.fromkeys(("a1", "b1", "b2"), "done"),
        "a2": "dead",
        "a3": "blocked",
    }
    [letter] = registry.entries(EntryFilter(status="dead"))
    assert (letter.attempts, letter.error) == (3, "ValueError: poison")
    target.poison.clear()
    assert registry.retry(EntryFilter(status="dead"), reason="mended") == 1
    assert handlers.run(mailer).done == 2
    assert target.effects == ["a1", "b1", "b2", "a2", "a3"]


@IN_MEMORY
def test_policies_for_poison(
    log: Log, handlers: Handlers, registry: Registry, target: Target
) -> None:
    """G5: `skip` continues the stream after a dead letter, `stop` stops the handler until retry."""
    append(log, "a1", "a2", "b1")
    target.poison = {"a1"}
    once = RetryPolicy(attempts=1)
    handlers.run(target.handler("skipping", on_poison="skip", retry=once))
    handlers.run(target.handler("skipping", on_poison="skip", retry=once))
    assert target.effects == ["b1", "a2"]

    stopping = target.handler("stopping", on_poison="stop", retry=once)
    for _ in range(2):
        with pytest.raises(Conflict, match="stopped: event a1"):
            handlers.run(stopping)
    target.poison.clear()
    registry.retry(EntryFilter(handler="stopping", status="dead"))
    handlers.run(stopping)
    assert sorted(target.effects[2:]) == ["a1", "a2", "b1"]


@IN_MEMORY
def test_a_paused_handler(log: Log, handlers: Handlers, registry: Registry, target: Target) -> None:
    """G5: a paused handler is refused by `run`; a follower waits until it is resumed."""
    append(log, "a1")
    mailer = target.handler()
    registry.declare(mailer)
    registry.set_status("mailer", "paused", "deploying")
    with pytest.raises(Conflict, match="paused: deploying"):
        handlers.run(mailer)
    with handlers.follow(mailer) as follower:
        wait_for(lambda: follower.health()[0].activity == "paused: deploying")
        assert follower.health()[0].status == "waiting"
        assert target.effects == []
        registry.set_status("mailer", "ready")
        wait_for(lambda: target.effects == ["a1"])
        wait_for(lambda: follower.health()[0].status == "running")


@IN_MEMORY
def test_a_changed_declaration(log: Log, handlers: Handlers, target: Target) -> None:
    """G4: a different declaration is refused, by `follow` at once, unless it replaces the first."""
    append(log, "a1")
    handlers.run(target.handler())
    changed = target.handler(events=["order.*"])
    with pytest.raises(Conflict, match="--redeclare"):
        handlers.run(changed)
    with pytest.raises(Conflict, match="--redeclare"):
        handlers.follow(changed)
    append(log, "a2")
    assert handlers.run(changed, redeclare=True).done == 1


@LOCAL
def test_contradictions_are_refused(log: Log, target: Target) -> None:
    """G6: `dlq` needs a target, and a transactional effect an enabled registry."""
    url = log.read_models.default_url("default").replace(".read.", ".delivery.")
    for settings, words in (
        (RegistrySettings(on_outage="dlq"), "dead-letter topic"),
        (RegistrySettings(enabled=False), "must be enabled"),
    ):
        handlers = log.handlers_at(url, settings)
        for call in (handlers.run, handlers.follow):
            with pytest.raises(InvalidArgument, match=words):
                call(target.handler(effect="transactional"))
    for call in (log.handlers.run, log.handlers.follow):
        with pytest.raises(InvalidArgument, match=r"decorate it with @seriatim\.handler"):
            call(target)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="batch_events"):
        log.handlers.run(target.handler(), batch_events=0)


@pytest.mark.parametrize("log", ["http"], indirect=True)
def test_a_remote_log_needs_a_registry(log: Log) -> None:
    """I10: a log over HTTP has no registry of its own; the error names the call that takes one."""
    with pytest.raises(InvalidArgument, match=r"log\.handlers_at\(url\)"):
        _ = log.handlers


@LOCAL
def test_dead_letters_are_sent_to_a_target(log: Log, tmp_path: Path, target: Target) -> None:
    """G5: dead letters go to a second target, before they are marked."""
    sent: list[DeadLetter] = []

    class Collector:
        def send(self, dead_letters: list[DeadLetter]) -> None:
            sent.extend(dead_letters)

    append(log, "a1", "b1")
    target.poison = {"a1"}
    handlers = log.handlers_at(f"sqlite:///{tmp_path}/registry.db", dead_letters=Collector())
    assert handlers.run(target.handler(retry=RetryPolicy(attempts=1))).dead == 1
    assert [(one.delivery.event_id, one.error) for one in sent] == [("a1", "ValueError: poison")]


@LOCAL
def test_a_disabled_registry(log: Log, tmp_path: Path, target: Target) -> None:
    """G6: with a disabled registry every run has its effects; a follower has them once."""
    append(log, "a1", "b1")
    handlers = log.handlers_at(f"sqlite:///{tmp_path}/r.db", RegistrySettings(enabled=False))
    mailer = target.handler()
    assert (handlers.run(mailer).done, handlers.run(mailer).done) == (2, 2)
    metrics = JobMetrics(Metrics())
    with handlers.follow(mailer, metrics=metrics) as follower:
        wait_for(lambda: follower.health()[0].position == 2)
        append(log, "a2")
        wait_for(lambda: follower.health()[0].position == 3)
    assert target.effects == [*["a1", "b1"] * 3, "a2"]


# -- tenants and identity


@IN_MEMORY
def test_tenants_have_their_own_cursors(log: Log, handlers: Handlers, target: Target) -> None:
    """K2: the handlers of a tenant's log see the events of that tenant only."""
    append(log, "a1")
    append(log.for_tenant("acme"), "x1", "x2")
    mailer = target.handler()
    assert log.for_tenant("acme").handlers.run(mailer).done == 2
    assert target.effects == ["x1", "x2"]
    assert handlers.run(mailer).done == 1
    assert target.effects == ["x1", "x2", "a1"]


@pytest.mark.parametrize("log", ["sqlite", "postgres"], indirect=True)
def test_a_restored_log_stops_handlers(
    log: Log, handlers: Handlers, registry: Registry, target: Target
) -> None:
    """G9: another epoch stops a run and a follower before any effect; a reset lets both go on."""
    append(log, "a1")
    mailer = target.handler()
    handlers.run(mailer)
    log.store.raise_epoch()
    append(log, "a2")
    with pytest.raises(LogIdentityChanged, match="seriatim registry reset mailer"):
        handlers.run(mailer)
    with handlers.follow(mailer) as follower:
        wait_for(lambda: "is of epoch" in follower.health()[0].error)
        assert (follower.health()[0].status, target.effects) == ("failed", ["a1"])
        registry.reset("mailer", log, reason="restored")
        wait_for(lambda: target.effects == ["a1", "a2"])


@LOCAL
def test_a_log_restored_within_a_batch(log: Log, handlers: Handlers, target: Target) -> None:
    """G9: events that are read after a restore are not counted as those of the log before it."""
    for number in range(600):  # more than a page
        append(log, f"{number % 7}-{number}")

    def restore(event: EventRecord, context: Any) -> None:
        target(event, context)
        if len(target.effects) == 10:
            log.store.raise_epoch()

    with pytest.raises(LogIdentityChanged, match="while handler restoring read it"):
        handlers.run(handler("restoring", effect="keyed")(restore))
    assert len(target.effects) == 500


def test_a_log_that_lost_events(target: Target, tmp_path: Path) -> None:
    """G9: a log with other events at the cursor's position is refused."""
    url, mailer = f"sqlite:///{tmp_path}/log.db", target.handler()
    with seriatim.open(url) as log:
        append(log, "a1")
    shutil.copy(tmp_path / "log.db", tmp_path / "copy.db")
    with seriatim.open(url) as log:
        append(log, "a2")
        log.handlers.run(mailer)
    shutil.copy(tmp_path / "copy.db", tmp_path / "log.db")
    with seriatim.open(url) as log:
        append(log, "b1", "b2")
        with pytest.raises(LogIdentityChanged, match="another event at position 2"):
            log.handlers.run(mailer)
    assert target.effects == ["a1", "a2"]


# -- follow


def test_followed_events_are_handled_at_once(log: Log, handlers: Handlers, target: Target) -> None:
    """G1, I10: several handlers follow the log, each with every event once and in order."""
    append(log, "a1")
    second = Target()
    with handlers.follow(target.handler(), second.handler("indexer")) as follower:
        for number in range(2, 12):
            append(log, f"a{number}")
        wait_for(lambda: len(target.effects) == len(second.effects) == 11)
        wait_for(lambda: [run.position for run in follower.health()] == [11, 11])
        assert [(run.name, run.kind, run.status, run.lag) for run in follower.health()] == [
            ("mailer", "handler", "running", 0),
            ("indexer", "handler", "running", 0),
        ]
    assert [run.status for run in follower.health()] == ["stopped", "stopped"]
    assert target.effects == second.effects == [f"a{number}" for number in range(1, 12)]


@IN_MEMORY
def test_an_append_wakes_a_follower(log: Log, handlers: Handlers) -> None:
    """I10: a follower waits for the log to grow; it does not sleep between two looks at it."""
    waits: list[float] = []
    arrived = threading.Event()
    wait = log.store.wait

    def waiting(position: int, timeout: float) -> None:
        waits.append(timeout)
        wait(position, 60.0)  # only an append ends it

    log.store.wait = waiting  # type: ignore[method-assign]
    follower = handlers.follow(handler("h", effect="keyed")(lambda _event, _: arrived.set()))
    wait_for(lambda: waits)
    append(log, "a1")
    assert arrived.wait(30)
    log.store.wait = wait  # type: ignore[method-assign]
    append(log, "a2")
    follower.stop()
    assert max(waits) <= 0.5


def test_due_events_of_a_follower(
    log: Log, handlers: Handlers, registry: Registry, target: Target
) -> None:
    """G5: a follower retries failed events without new ones, and sees an operator's skip."""
    target.poison = {"a1"}
    append(log, "a1", "a2", "b1")
    with handlers.follow(target.handler()):
        wait_for(lambda: statuses(registry).get("a1") == "dead")
        wait_for(lambda: target.effects == ["b1"])
        registry.skip(EntryFilter(event_id="a1"), "the customer was called")
        wait_for(lambda: target.effects == ["b1", "a2"])
    assert statuses(registry)["a1"] == "skipped"


def test_one_stopped_handler_does_not_stop_the_others(
    log: Log, handlers: Handlers, registry: Registry, target: Target
) -> None:
    """G5: the others go on; the stopped one shows why, and continues after a retry."""
    target.poison = {"a1"}
    healthy = Target()
    mailer = target.handler(on_poison="stop", retry=RetryPolicy(attempts=1))
    with handlers.follow(mailer, healthy.handler("indexer")) as follower:
        append(log, "a1", "a2")
        wait_for(lambda: healthy.effects == ["a1", "a2"])
        failed = wait_for(lambda: next((run for run in follower.health() if run.error), None))
        assert (failed.name, failed.status) == ("mailer", "failed")
        assert "stopped: event a1" in failed.error
        target.poison.clear()
        registry.retry(EntryFilter(status="dead"), reason="mended")
        wait_for(lambda: target.effects == ["a1", "a2"])
        wait_for(lambda: follower.health()[0].status == "running")


@pytest.mark.parametrize("log", ["sqlite", "postgres"], indirect=True)
def test_followers_share_by_claims(log: Log, handlers: Handlers) -> None:
    """G1: two followers of a handler share its events, each with one effect, in order."""
    effects: list[tuple[str, str]] = []

    def make(name: str) -> Handler:
        def run(event: EventRecord, _context: Any) -> None:
            time.sleep(0.001)
            effects.append((event.event_id, name))

        return handler("shared", effect="keyed", retry=QUICK)(run)

    names = [f"{stream}{number}" for number in range(40) for stream in "abcd"]
    with handlers.follow(make("one")) as one, handlers.follow(make("two")) as two:
        for first in range(0, len(names), 4):
            append(log, *names[first : first + 4])
        wait_for(lambda: len(effects) == len(names))
        wait_for(lambda: one.health()[0].position == two.health()[0].position == len(names))
    assert sorted(name for name, _ in effects) == sorted(names)
    for stream in "abcd":
        own = [name for name, _ in effects if name[0] == stream]
        assert own == [name for name in names if name[0] == stream]


@pytest.mark.parametrize("effect", ["transactional", "keyed", "unsafe"])
@LOCAL
def test_stop_within_a_chunk(log: Log, handlers: Handlers, registry: Registry, effect: str) -> None:
    """G10: a stop ends a long batch between two effects; the rest is deferred, not lost."""
    entered, gate = threading.Event(), threading.Event()
    effects: list[str] = []

    def slow(event: EventRecord, _context: Any) -> None:
        effects.append(event.event_id)
        if len(effects) == 3:
            entered.set()
            assert gate.wait(30)

    names = [f"{'abc'[number % 3]}{number}" for number in range(300)]
    append(log, *names)
    slowly = handler("slow", effect=effect)(slow)  # type: ignore[arg-type] # by its name
    follower = handlers.follow(slowly)
    assert entered.wait(30)
    with pytest.raises(TimedOut, match="slow did not stop within"):
        follower.stop(timeout_s=0.05)
    gate.set()
    follower.stop(timeout_s=30)

    assert len(effects) == 3
    assert not {"claimed"} & set(statuses(registry).values())
    if effect == "transactional":  # the transaction of the chunk was rolled back
        effects.clear()
    counts = handlers.run(slowly)
    assert sorted(effects) == sorted(names)
    assert counts.failed == counts.dead == 0
    for stream in "abc":
        own = [name for name in effects if name[0] == stream]
        assert own == [name for name in names if name[0] == stream]


@pytest.mark.parametrize("log", ["sqlite"], indirect=True)
def test_stop_in_an_outage(log: Log, tmp_path: Path, target: Target) -> None:
    """G6: a follower that waits for its registry reports that, and can be stopped meanwhile."""
    file = tmp_path / "registry.db"
    handlers = log.handlers_at(f"sqlite:///{file}")
    append(log, "a1")
    with closing(handlers.open_registry()):
        follower = handlers.follow(target.handler())
        wait_for(lambda: target.effects == ["a1"])
        original = Registry.cursor

        def fail(self: Registry, *arguments: Any) -> str | None:
            def unreachable() -> str | None:
                raise seriatim.BackendFailure("the registry is unreachable")

            return self.outage.run(unreachable)

        Registry.cursor = fail  # type: ignore[method-assign,assignment]
        try:
            wait_for(lambda: follower.health()[0].activity == "waiting for the registry")
            assert follower.health()[0].status == "waiting"
            follower.stop(timeout_s=10)
        finally:
            Registry.cursor = original  # type: ignore[method-assign]
    assert follower.health()[0].status == "stopped"


def test_until_ends_a_run(log: Log, handlers: Handlers, target: Target) -> None:
    """G10: `until` ends a run within a batch; the next run has the remaining effects."""
    names = [f"a{number}" for number in range(50)]
    append(log, *names)
    mailer = target.handler()
    handlers.run(mailer, until=lambda: len(target.effects) >= 5)
    assert target.effects == names[:5]
    handlers.run(mailer)
    assert target.effects == names


@IN_MEMORY
def test_a_stopped_run_does_not_skip_events(
    log: Log, handlers: Handlers, registry: Registry, target: Target
) -> None:
    """G10: the cursor of a stopped run is at the last event that it has handled or deferred."""
    names = [f"{'abc'[number % 3]}{number}" for number in range(1200)]
    for first in range(0, len(names), 400):
        append(log, *names[first : first + 400])
    mailer = target.handler()
    handlers.run(mailer, until=lambda: len(target.effects) >= 5)

    [cursor] = registry.cursors()
    assert cursor.position == len(statuses(registry)) == 500  # those that were claimed together
    handlers.run(mailer)
    assert sorted(target.effects) == sorted(names)


# -- reports


@IN_MEMORY
def test_reports_and_metrics(log: Log, handlers: Handlers, target: Target) -> None:
    """M2: runs report their positions; a follower sets position, outcomes and registry states."""
    append(log, *(f"a{number}" for number in range(5)))
    reports: list[RunReport] = []
    handlers.run(target.handler(), batch_events=2, on_progress=reports.append)
    assert [(one.activity, one.position, one.lag) for one in reports] == [
        ("work", 2, 3),
        ("work", 4, 1),
        ("work", 5, 0),
    ]

    metrics = Metrics()
    target.poison = {"a3"}
    poor = target.handler("poor", retry=RetryPolicy(attempts=1))
    lines = [
        'seriatim_job_position{job="poor"} 5.0',
        'seriatim_job_lag_events{job="poor"} 0.0',
        'seriatim_job_events{job="poor",outcome="done"} 3.0',
        'seriatim_registry_events{handler="poor",status="dead"} 1.0',
        'seriatim_registry_outage{handler="poor"} 0.0',
    ]
    with handlers.follow(poor, metrics=JobMetrics(metrics)):
        wait_for(lambda: all(line in metrics.render()[0].decode() for line in lines))


@LOCAL
def test_spans_continue_the_trace_of_the_append(log: Log, handlers: Handlers) -> None:
    """M2: the span of a local effect is in the trace of its event's append."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    undo = use_provider(provider)
    try:
        append(log, "a1")
        handlers.run(handler("traced", effect="keyed")(lambda _event, _context: None))
    finally:
        undo()
    spans = {span.name: span for span in exporter.get_finished_spans()}

    effect, appended = spans["seriatim.handle"], spans["seriatim.append"]
    assert effect.parent is not None
    assert effect.parent.span_id == appended.get_span_context().span_id  # type: ignore[union-attr]
    assert (effect.attributes or {})["seriatim.event_id"] == "a1"
    assert (spans["seriatim.work"].attributes or {})["seriatim.count"] == 1


# -- asyncio


@IN_MEMORY
def test_async_handlers_run_in_one_loop(log: Log, handlers: Handlers) -> None:
    """I10: without asyncio around it, an async handler has one event loop for its whole run."""
    loops: list[asyncio.AbstractEventLoop] = []

    @handler("later", effect="keyed")
    async def later(_event: EventRecord, _context: Any) -> None:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())

    append(log, "a1", "a2", "b1")
    assert handlers.run(later, batch_events=1).done == 3
    assert len(set(loops)) == 1

    async def main() -> None:
        with pytest.raises(InvalidArgument, match=r"await log\.aio\.handlers\.run"):
            handlers.run(later)

    asyncio.run(main())


def test_on_asyncio(log: Log, handlers: Handlers) -> None:
    """I10: on asyncio an async handler runs on the caller's event loop, and others in threads."""
    seen: list[tuple[str, bool]] = []

    async def note(event: EventRecord, _context: Any) -> None:
        await asyncio.sleep(0)
        seen.append((event.event_id, threading.current_thread() is threading.main_thread()))

    def note_now(event: EventRecord, _context: Any) -> None:
        seen.append((event.event_id, threading.current_thread() is threading.main_thread()))

    later = handler("later", effect="keyed")(note)
    now = handler("now", effect="keyed")(note_now)

    async def main() -> None:
        on_asyncio = AsyncHandlers(handlers)
        await log.aio.append([NewEvent("order.placed", event_id="a1")])
        assert (await on_asyncio.run(later)).done == 1
        async with on_asyncio.follow(later, now) as follower:
            await log.aio.append([NewEvent("order.placed", event_id="a2")])
            await asyncio.to_thread(wait_for, lambda: len(seen) == 4)
            assert [run.name for run in follower.health()] == ["later", "now"]
        assert [run.status for run in follower.health()] == ["stopped", "stopped"]

    asyncio.run(asyncio.wait_for(main(), 60))
    assert sorted(seen) == [("a1", False), ("a1", True), ("a2", False), ("a2", True)]


@IN_MEMORY
def test_async_handlers_may_use_the_executor_of_their_loop(log: Log) -> None:
    """I10: runs and stops occupy no thread of the loop's executor, which effects may need."""

    @handler("later", effect="keyed")
    async def later(_event: EventRecord, _context: Any) -> None:
        await asyncio.to_thread(lambda: None)

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        append(log, "a1")
        assert (await log.aio.handlers.run(later)).done == 1
        follower = log.aio.handlers.follow(later)
        append(log, *(f"a{number}" for number in range(2, 50)))
        await follower.stop()

    asyncio.run(asyncio.wait_for(main(), 20))


@IN_MEMORY
def test_async_transactional_effects(log: Log, handlers: Handlers) -> None:
    """G7: an async transactional effect runs in the thread of its connection."""

    @handler("ledger", effect="transactional")
    async def ledger(event: EventRecord, context: Any) -> None:
        await asyncio.sleep(0)
        context.connection.execute("create table if not exists effects (event_id text)")
        context.connection.execute("insert into effects values (?)", (event.event_id,))

    append(log, "a1", "b1")
    assert asyncio.run(log.aio.handlers.run(ledger)).done == 2
    with (
        closing(handlers.open_registry()) as registry,
        registry.engine.transaction(write=False) as session,
    ):
        assert session.run("select event_id from effects order by 1") == [("a1",), ("b1",)]


@IN_MEMORY
def test_a_cancelled_run_releases_its_claims(
    log: Log, handlers: Handlers, registry: Registry
) -> None:
    """G2: cancelling an asyncio run cancels the effect, and another run handles the events."""
    entered = threading.Event()
    effects: list[str] = []

    async def hang(event: EventRecord, _context: Any) -> None:
        if not entered.is_set():
            entered.set()
            await asyncio.sleep(60)
        effects.append(event.event_id)

    hanging = handler("hanging", effect="keyed")(hang)
    append(log, "a1", "a2", "b1")

    async def main() -> None:
        running = asyncio.create_task(log.aio.handlers.run(hanging))
        assert await asyncio.to_thread(entered.wait, 30)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert "claimed" not in statuses(registry).values()
        assert (await log.aio.handlers.run(hanging)).done == 3

    asyncio.run(main())
    assert sorted(effects) == ["a1", "a2", "b1"]


@IN_MEMORY
def test_an_effect_that_cancels_itself_fails(
    log: Log, handlers: Handlers, registry: Registry
) -> None:
    """G5: an effect that ends as cancelled has failed; it does not end the follower."""

    async def give_up(_event: EventRecord, _context: Any) -> None:
        raise asyncio.CancelledError

    quitter = handler("quitter", effect="keyed", retry=RetryPolicy(attempts=1))(give_up)
    append(log, "a1")

    async def main() -> None:
        async with log.aio.handlers.follow(quitter):
            await asyncio.to_thread(wait_for, lambda: statuses(registry) == {"a1": "dead"})

    asyncio.run(asyncio.wait_for(main(), 60))
    [letter] = registry.entries(EntryFilter(status="dead"))
    assert "the effect was cancelled" in letter.error


@IN_MEMORY
def test_a_loop_that_ends_before_its_follower(log: Log, handlers: Handlers) -> None:
    """G10: without its event loop an async handler fails with the cure, and loses no event."""
    seen: list[str] = []

    async def note(event: EventRecord, _context: Any) -> None:
        seen.append(event.event_id)

    later = handler("later", effect="keyed")(note)
    kept: list[Any] = []

    async def main() -> None:
        kept.append(log.aio.handlers.follow(later))

    asyncio.run(main())
    append(log, "a1")
    [follower] = kept
    wait_for(lambda: "the event loop of handler later has ended" in follower.health()[0].error)
    asyncio.run(follower.stop())
    assert handlers.run(later).done == 1
    assert seen == ["a1"]


# -- processes


def test_first_handler_without_spark(tmp_path: Path) -> None:
    """I10: neither PySpark nor Java is loaded by a run on the local engine."""
    program = f"""
import sys, seriatim
mail = seriatim.handler("mail", effect="keyed")(lambda event, context: None)
with seriatim.open("sqlite:///{tmp_path}/log.db") as log:
    log.append([seriatim.NewEvent("x", stream=("order", "1"))])
    assert log.handlers.run(mail).done == 1
loaded = {{"pyspark", "pyarrow", "py4j", "pandas", "numpy"}} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_dropped_follower_does_not_keep_a_program_alive(tmp_path: Path) -> None:
    """I10: a program that forgets to stop its follower still ends."""
    program = f"""
import threading, seriatim
done = threading.Event()
log = seriatim.open("sqlite:///{tmp_path}/log.db")
mail = seriatim.handler("mail", effect="keyed")(lambda event, context: done.set())
follower = log.handlers.follow(mail)
log.append([seriatim.NewEvent("x")])
assert done.wait(30)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_an_empty_follower_has_no_runs() -> None:
    """I10: a follower without handlers is healthy, and stops at once."""
    with seriatim.open("memory:") as log, log.handlers.follow() as follower:
        assert isinstance(follower, Follower)
        assert follower.health() == []
    assert follower.wait(timeout_s=0.01)
