"""Appends over HTTP: against an endpoint that does nothing, in process, and against a rival."""

from bench.callers import tasks, threads
from bench.harness import Contestant, Figure, beside, interleave, ratio
from bench.http_load import load
from bench.http_server import NOOP
from bench.service_plan import ServiceStage

CONNECTIONS = 32
CALLERS = 4
BATCH = 100
FEW_STREAMS = 4
NOOP_GOAL, UMADB_GOAL, UMADB_AIM, BATCH_GOAL = 0.8, 0.6, 1.0, 0.6
EVENTS = "/v1/events"


def singles(stage: ServiceStage) -> list[Figure]:
    """Append one event a request from 32 connections, and through the client by 32 tasks."""
    noop, plain, client, rival, inside = interleave(
        {
            "no-op endpoint, 32 connections": _over_http(stage, NOOP),
            "singles over HTTP, 32 connections": _over_http(stage, EVENTS),
            "singles by the client, 32 tasks": _by_client(stage),
            "umadb singles, 32 threads": stage.umadb.singles(CONNECTIONS, stage.orders()),
            "singles in process, 32 tasks": stage.log.task_singles(CONNECTIONS, stage.orders()),
        },
        rounds=stage.plan.rounds,
        seconds=stage.plan.seconds,
        say=stage.say,
    ).values()
    return [
        ratio("HTTP singles / no-op", plain, noop, against="no-op endpoint", goal=NOOP_GOAL),
        ratio(
            "client singles / umadb", client, rival, against="umadb", goal=UMADB_GOAL, aim=UMADB_AIM
        ),
        ratio("HTTP singles / umadb", plain, rival, against="umadb"),
        ratio("client singles / in process", client, inside, against="in process"),
        beside("no-op endpoint, 32 connections", noop),
    ]


def _over_http(stage: ServiceStage, path: str) -> Contestant:
    orders = stage.orders()
    return load(stage.port, CONNECTIONS, lambda: stage.request(path, [orders.event()]))


def _by_client(stage: ServiceStage) -> Contestant:
    orders = stage.orders()

    async def act(_: int) -> int:
        return (await stage.remote.aio.append([orders.event()])).count

    return tasks(CONNECTIONS, act)


def batches(stage: ServiceStage) -> list[Figure]:
    """Append batches of 100 by four callers: over HTTP, through the client, and in process."""
    orders = stage.orders()
    over, client, inside = interleave(
        {
            "batches of 100 over HTTP": load(
                stage.port,
                CALLERS,
                lambda: stage.request(EVENTS, orders.batch(BATCH, FEW_STREAMS)),
                events=BATCH,
            ),
            "batches of 100 by the client": threads(
                CALLERS, lambda _: stage.remote.append(orders.batch(BATCH, FEW_STREAMS)).count
            ),
            "batches of 100 in process": stage.log.batches(CALLERS, orders, BATCH, FEW_STREAMS),
        },
        rounds=stage.plan.rounds,
        seconds=stage.plan.seconds,
        say=stage.say,
    ).values()
    return [
        ratio("HTTP batches / in process", over, inside, against="in process", goal=BATCH_GOAL),
        ratio("client batches / in process", client, inside, against="in process"),
    ]
