"""Transactional effects on the local engine, compared with two committed statements per event."""

import uuid
from contextlib import closing
from typing import Any

import psycopg

from bench.delivery.plan import DeliveryEnvironment
from bench.measurement import Figure, Sample, Stopwatch, Subject, interleave, ratio, timed
from seriatim.config import Settings
from seriatim.core.handler import Handler, handler
from seriatim.delivery.handler_runner import run_handler
from seriatim.delivery.local_handler import LocalHandler
from seriatim.factory import open_registry, open_store

GOAL = 3.0
_AGAINST = "claim and effect committed per event"
_SCHEMA = "bench_local"
_CREATE = """
create table if not exists local_effects (handler text, event_id text, position bigint);
create table if not exists local_claims (
    handler text, event_id text, status text, owner text, lease timestamptz,
    primary key (handler, event_id))
"""
_CLAIM = """
insert into local_claims values (%s, %s, 'claimed', %s, now() + interval '900 s')
on conflict do nothing returning event_id
"""
_EFFECT = "insert into public.local_effects values (%s, %s, %s)"


def local(environment: DeliveryEnvironment) -> list[Figure]:
    """Measure a handler that writes one row per event, in one thread of a process."""
    with psycopg.connect(environment.url, autocommit=True) as session:
        session.execute(_CREATE)
    ours, bare = interleave(
        {"local handler": _handle(environment), _AGAINST: _commit_each(environment)},
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
    ).values()
    name = "local handler, effects in chunks / two commits"
    return [ratio(name, ours, bare, against=_AGAINST, goal=GOAL)]


def _make_handler(start: int) -> Handler:
    name = f"local-{uuid.uuid4().hex[:8]}"

    def write(event: Any, context: Any) -> None:
        context.connection.execute(_EFFECT, (name, event.event_id, event.position))

    return handler(name, effect="transactional", start=start)(write)


def _handle(environment: DeliveryEnvironment) -> Subject:
    """Return a subject that handles a part of the log with a new handler each time."""
    start = environment.plan.events - environment.plan.handled
    separator = "&" if "?" in environment.url else "?"
    registry_at = f"{environment.url}{separator}schema={_SCHEMA}"

    def run() -> int:
        with (
            closing(open_store(environment.url, Settings(), create=False)) as store,
            closing(open_registry(registry_at)) as registry,
        ):
            job = LocalHandler(_make_handler(start), store, registry, tenant_id=None)
            done = run_handler(job).done
        assert done == environment.plan.handled, done
        return done

    return timed(run)


def _commit_each(environment: DeliveryEnvironment) -> Subject:
    """Return a subject that commits the claim and the effect of each event."""

    def run(seconds: float) -> Sample:
        name, count, watch = uuid.uuid4().hex, 0, Stopwatch()
        with psycopg.connect(environment.url, autocommit=True) as session:
            while watch.seconds < seconds:
                event_id = str(uuid.uuid4())
                session.execute(_CLAIM, (name, event_id, "me"))
                session.execute(_EFFECT, (name, event_id, count))
                count += 1
        return Sample(count, watch.seconds)

    return run
