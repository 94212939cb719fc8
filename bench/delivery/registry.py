"""Claims and completions from a Spark job, compared with two plain statements per event."""

import threading
import uuid
from typing import Any

import psycopg

from bench.delivery.plan import DeliveryEnvironment
from bench.measurement import Figure, Sample, Stopwatch, Subject, interleave, ratio, timed
from bench.plan import format_count
from seriatim.core.handler import Delivery, Handler, handler
from seriatim.delivery.registry import Registry
from seriatim.factory import open_registry
from seriatim.pipeline.work.worker import Worker

GOAL, ROUND_TRIPS_GOAL, GROWTH_GOAL = 3.0, 2.0, 0.85
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


def registry(environment: DeliveryEnvironment) -> list[Figure]:
    """Measure a handler without an effect."""
    ours, bare = _measure(environment)
    name = "registry, batched on Spark / two statements"
    return [
        ratio(name, ours, bare, against="two statements an event", goal=GOAL),
        _round_trips(environment),
    ]


def growth(environment: DeliveryEnvironment) -> list[Figure]:
    """Measure the effect of many rows in the registry on batched and single claims."""
    before = interleave(
        {"on Spark": _on_spark(environment), "one by one": _claim_singly(environment)},
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
    )
    rows = environment.plan.large_events
    with psycopg.connect(environment.url, autocommit=True) as session:
        session.execute(_FILL.format(schema=_SCHEMA, rows=rows))
        session.execute(f"vacuum analyze {_SCHEMA}.seriatim_handled")
        session.execute("checkpoint")
    after = interleave(
        {"on Spark": _on_spark(environment), "one by one": _claim_singly(environment)},
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
    )
    return [
        ratio(
            f"registry {way} with {format_count(rows)} rows / without",
            after[way],
            before[way],
            against="the same without",
            goal=GROWTH_GOAL,
        )
        for way in after
    ]


def _measure(environment: DeliveryEnvironment) -> Any:
    with psycopg.connect(environment.url, autocommit=True) as session:
        session.execute(_BARE)
    return interleave(
        {"worker on Spark": _on_spark(environment), "two statements an event": _bare(environment)},
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
    ).values()


def _registry_url(environment: DeliveryEnvironment) -> str:
    return f"{environment.url}{'&' if '?' in environment.url else '?'}schema={_SCHEMA}"


def _do_nothing(_event: object, _context: object) -> None:
    """Do nothing."""


def _make_handler() -> Handler:
    return handler(f"idle-{uuid.uuid4().hex[:8]}", effect="keyed")(_do_nothing)


def _on_spark(environment: DeliveryEnvironment) -> Subject:
    """Return a subject that processes a part of the log with a new handler each time."""
    start = environment.plan.events - environment.plan.handled

    def run() -> int:
        idle_handler = handler(f"idle-{uuid.uuid4().hex[:8]}", effect="keyed", start=start)(
            _do_nothing
        )
        with Worker(
            environment.spark,
            idle_handler,
            url=environment.url,
            registry=_registry_url(environment),
            batch_events=environment.plan.handled,
        ) as worker:
            done = worker.run().done
        assert done == environment.plan.handled, done
        return done

    return timed(run)


def _claim_singly(environment: DeliveryEnvironment) -> Subject:
    """Return a subject that claims and completes events one at a time."""

    def run(seconds: float) -> Sample:
        registry = open_registry(_registry_url(environment))
        idle_handler, count, watch = _make_handler(), 0, Stopwatch()
        while watch.seconds < seconds:
            _claim_and_complete(registry, idle_handler, count)
            count += 1
        registry.close()
        return Sample(count, watch.seconds)

    return run


def _claim_and_complete(registry: Registry, idle_handler: Handler, number: int) -> None:
    event = Delivery(event_id=str(uuid.uuid4()), position=number)
    registry.mark_done(idle_handler, registry.claim_all(idle_handler, [event]))


def _bare(environment: DeliveryEnvironment) -> Subject:
    """Return a subject that runs two statements per event on as many connections as tasks."""
    connections = environment.spark.sparkContext.defaultParallelism

    def run(seconds: float) -> Sample:
        counts = [0] * connections
        watch = Stopwatch()

        def loop(nth: int) -> None:
            name = uuid.uuid4().hex
            with psycopg.connect(environment.url, autocommit=True) as session:
                while watch.seconds < seconds:
                    event_id = str(uuid.uuid4())
                    session.execute(_CLAIM, (name, event_id, "me"))
                    session.execute(_DONE, (name, event_id))
                    counts[nth] += 1

        threads = [threading.Thread(target=loop, args=(nth,)) for nth in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return Sample(sum(counts), watch.seconds)

    return run


def _round_trips(environment: DeliveryEnvironment) -> Figure:
    """Count the statements sent to the server per event that is claimed singly."""
    registry = open_registry(_registry_url(environment))
    sent = 0
    original = registry.engine.autocommit

    def count_and_call(*, write: bool = True) -> Any:
        nonlocal sent
        sent += 1
        return original(write=write)

    registry.engine.autocommit = count_and_call  # type: ignore[method-assign]
    idle_handler = _make_handler()
    for number in range(100):
        _claim_and_complete(registry, idle_handler, number)
    registry.close()
    return Figure(
        name="registry, round trips an event, unbatched",
        measured=sent / 100,
        goal=ROUND_TRIPS_GOAL,
        unit="",
        at_most=True,
    )
