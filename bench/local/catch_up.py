"""A catch-up in this process, compared with a loop that reads and folds but writes nothing."""

import itertools
from functools import partial
from typing import Any

import seriatim
from bench.local.plan import LocalEnvironment
from bench.measurement import Figure, interleave, ratio, timed
from bench.pipeline.read_models import ORDERS, fold_order

GOAL = 0.5

_numbers = itertools.count(1)


def catch_up(environment: LocalEnvironment) -> list[Figure]:
    """Fold all orders both ways, on Postgres and SQLite."""
    return [
        _compare(environment, "Postgres", environment.postgres.url),
        _compare(environment, "SQLite", environment.sqlite.url),
    ]


def _compare(environment: LocalEnvironment, backend: str, url: str) -> Figure:
    ours, loop = interleave(
        {
            f"catch-up, {backend}": timed(lambda: run_local(url, new_target(environment, url))),
            f"loop without writes, {backend}": timed(partial(fold_without_writing, url)),
        },
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
        warm_up=False,  # each runs to the end of the log
    ).values()
    name = f"local catch-up / loop that writes nothing, {backend}"
    return ratio(name, ours, loop, against="loop in Python", goal=GOAL)


def new_target(environment: LocalEnvironment, url: str) -> str:
    """Return the URL of a read model that does not exist yet."""
    number = next(_numbers)
    if url.startswith("sqlite:"):
        return f"sqlite:///{environment.home}/read-{number}.db"
    return f"{url}?schema=local_{number}"


def run_local(url: str, target: str) -> int:
    """Build the read model of orders; return the number of events."""
    with seriatim.open(url) as log:
        return log.projections_at(target).run(ORDERS).position


def fold_without_writing(url: str) -> int:
    """Read the log and fold every order in a dict; return the number of events."""
    states: dict[tuple[str, str], dict[str, Any]] = {}
    count = 0
    with seriatim.open(url) as log:
        for event in log.read():
            if event.stream_id is not None:
                key = event.tenant_id, event.stream_id
                states[key] = fold_order(states.get(key), event)
            count += 1
    return count
