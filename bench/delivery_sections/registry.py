"""Claims and their ends from one Spark job, against two bare statements an event."""

import threading
import uuid
from typing import Any

import psycopg

from bench.delivery_plan import DeliveryStage
from bench.harness import Contestant, Figure, Sample, Stopwatch, interleave, ratio, timed
from bench.plan import in_words
from seriatim.core.handling import Delivery, Handler, handler
from seriatim.delivery.registry import Registry
from seriatim.opening import open_registry
from seriatim.pipeline.work.working import Worker

GOAL, TRIPS, LEAST = 3.0, 2.0, 0.85
_SCHEMA = "bench_registry"
_BARE = """
create table if not exists bare_registry (
    handler text, event_id text, status text, owner text, lease timestamptz,
    primary key (handler, event_id))
"""
_CLAIM = """
insert into bare_registry values (%s, %s, 'claimed', %s, now() + interval '900 s')
on conflict do nothing returning event_id
"""
_DONE = "update bare_registry set status = 'done' where handler = %s and event_id = %s"
_FILL = """
insert into {schema}.seriatim_handled
    (handler, tenant_id, event_id, event_type, position, stream_type, stream_id, stream_seq,
     status, token, attempts, first_us, updated_us)
select 'earlier', 'default',
       '019f0000-' || lpad(to_hex(n / 65536), 4, '0') || '-7' || lpad(to_hex(n % 65536), 4, '0')
       || '-8000-' || lpad(to_hex(n), 12, '0'),
       'order.placed', n, 'order', (n / 10)::text, n % 10, 'done', 1, 1, 0, 0
from generate_series(1, {rows}) n
"""


def registry(stage: DeliveryStage) -> list[Figure]:
    """Handle events with a handler that does nothing."""
    ours, bare = _contest(stage)
    name = "registry, batched on Spark / two statements"
    return [
        ratio(name, ours, bare, against="two statements an event", goal=GOAL),
        _round_trips(stage),
    ]


def growth(stage: DeliveryStage) -> list[Figure]:
    """See whether many rows in the registry slow either way down."""
    before = interleave(
        {"on Spark": _on_spark(stage), "one by one": _one_by_one(stage)},
        rounds=stage.plan.rounds,
        seconds=stage.plan.seconds,
        say=stage.say,
    )
    rows = stage.plan.large_events
    with psycopg.connect(stage.url, autocommit=True) as session:
        session.execute(_FILL.format(schema=_SCHEMA, rows=rows))
        session.execute(f"vacuum analyze {_SCHEMA}.seriatim_handled")
        session.execute("checkpoint")
    after = interleave(
        {"on Spark": _on_spark(stage), "one by one": _one_by_one(stage)},
        rounds=stage.plan.rounds,
        seconds=stage.plan.seconds,
        say=stage.say,
    )
    return [
        ratio(
            f"registry {what} with {in_words(rows)} rows / without",
            after[what],
            before[what],
            against="the same without",
            goal=LEAST,
        )
        for what in after
    ]


def _contest(stage: DeliveryStage) -> Any:
    with psycopg.connect(stage.url, autocommit=True) as session:
        session.execute(_BARE)
    return interleave(
        {"worker on Spark": _on_spark(stage), "two statements an event": _bare(stage)},
        rounds=stage.plan.rounds,
        seconds=stage.plan.seconds,
        say=stage.say,
    ).values()


def _place(stage: DeliveryStage) -> str:
    return f"{stage.url}{'&' if '?' in stage.url else '?'}schema={_SCHEMA}"


def _idle(_event: object, _context: object) -> None:
    """Have no effect."""


def _handler() -> Handler:
    return handler(f"idle-{uuid.uuid4().hex[:8]}", effect="keyed")(_idle)


def _on_spark(stage: DeliveryStage) -> Contestant:
    """Handle a part of the log by a handler that is new each time."""
    start = stage.plan.events - stage.plan.handled

    def run() -> int:
        one = handler(f"idle-{uuid.uuid4().hex[:8]}", effect="keyed", start=start)(_idle)
        with Worker(
            stage.spark,
            one,
            url=stage.url,
            registry=_place(stage),
            batch_events=stage.plan.handled,
        ) as worker:
            done = worker.run().done
        assert done == stage.plan.handled, done
        return done

    return timed(run)


def _one_by_one(stage: DeliveryStage) -> Contestant:
    """Claim and end events one at a time."""

    def run(seconds: float) -> Sample:
        opened = open_registry(_place(stage))
        one, count, watch = _handler(), 0, Stopwatch()
        while watch.seconds < seconds:
            _once(opened, one, count)
            count += 1
        opened.close()
        return Sample(count, watch.seconds)

    return run


def _once(opened: Registry, one: Handler, number: int) -> None:
    event = Delivery(event_id=str(uuid.uuid4()), position=number)
    opened.mark_done(one, opened.claim_all(one, [event]))


def _bare(stage: DeliveryStage) -> Contestant:
    """Run two statements an event, at as many connections as Spark has tasks."""
    connections = stage.spark.sparkContext.defaultParallelism

    def run(seconds: float) -> Sample:
        counts = [0] * connections
        watch = Stopwatch()

        def loop(nth: int) -> None:
            name = uuid.uuid4().hex
            with psycopg.connect(stage.url, autocommit=True) as session:
                while watch.seconds < seconds:
                    event_id = str(uuid.uuid4())
                    session.execute(_CLAIM, (name, event_id, "me"))
                    session.execute(_DONE, (name, event_id))
                    counts[nth] += 1

        crew = [threading.Thread(target=loop, args=(nth,)) for nth in range(connections)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        return Sample(sum(counts), watch.seconds)

    return run


def _round_trips(stage: DeliveryStage) -> Figure:
    """Count the statements that the server was sent for events that are claimed one by one."""
    opened = open_registry(_place(stage))
    sent = 0
    original = opened.engine.at_once

    def counted() -> Any:
        nonlocal sent
        sent += 1
        return original()

    opened.engine.at_once = counted  # type: ignore[method-assign]
    one = _handler()
    for number in range(100):
        _once(opened, one, number)
    opened.close()
    return Figure(
        name="registry, round trips an event, unbatched",
        measured=sent / 100,
        goal=TRIPS,
        unit="",
        at_most=True,
    )
