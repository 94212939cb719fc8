"""Appends over HTTP, compared with a no-op endpoint, in-process appends and UmaDB."""

from bench.callers import tasks, threads
from bench.measurement import Figure, Subject, interleave, ratio, reference
from bench.service.http_load import load
from bench.service.http_server import NOOP
from bench.service.plan import ServiceEnvironment

CONNECTIONS = 32
CALLERS = 4
BATCH = 100
FEW_STREAMS = 4
NOOP_GOAL, NOOP_AIM = 0.5, 0.7
UMADB_GOAL, UMADB_AIM = 1.3, 1.8
HTTP_BATCH_GOAL = 0.6
CLIENT_BATCH_GOAL, CLIENT_BATCH_AIM = 0.7, 0.85
EVENTS = "/v1/events"


def singles(environment: ServiceEnvironment) -> list[Figure]:
    """Measure single appends from 32 connections, and from 32 tasks with the client."""
    noop, plain, client, competitor, in_process = interleave(
        {
            "no-op endpoint, 32 connections": _over_http(environment, NOOP),
            "singles over HTTP, 32 connections": _over_http(environment, EVENTS),
            "singles by the client, 32 tasks": _by_client(environment),
            "umadb singles, 32 threads": environment.umadb.singles(
                CONNECTIONS, environment.orders()
            ),
            "singles in process, 32 tasks": environment.log.task_singles(
                CONNECTIONS, environment.orders()
            ),
        },
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
    ).values()
    return [
        ratio(
            *("HTTP singles / no-op", plain, noop),
            against="no-op endpoint",
            goal=NOOP_GOAL,
            aim=NOOP_AIM,
        ),
        ratio(
            "client singles / umadb",
            client,
            competitor,
            against="umadb",
            goal=UMADB_GOAL,
            aim=UMADB_AIM,
        ),
        ratio("HTTP singles / umadb", plain, competitor, against="umadb"),
        ratio("client singles / in process", client, in_process, against="in process"),
        reference("no-op endpoint, 32 connections", noop),
    ]


def _over_http(environment: ServiceEnvironment, path: str) -> Subject:
    orders = environment.orders()
    return load(environment.port, CONNECTIONS, lambda: environment.request(path, [orders.event()]))


def _by_client(environment: ServiceEnvironment) -> Subject:
    orders = environment.orders()

    async def append(_: int) -> int:
        return (await environment.remote.aio.append([orders.event()])).count

    return tasks(CONNECTIONS, append)


def batches(environment: ServiceEnvironment) -> list[Figure]:
    """Measure batches of 100 from four callers: over HTTP, with the client, in process."""
    orders = environment.orders()
    over_http, client, in_process = interleave(
        {
            "batches of 100 over HTTP": load(
                environment.port,
                CALLERS,
                lambda: environment.request(EVENTS, orders.batch(BATCH, FEW_STREAMS)),
                events=BATCH,
            ),
            "batches of 100 by the client": threads(
                CALLERS, lambda _: environment.remote.append(orders.batch(BATCH, FEW_STREAMS)).count
            ),
            "batches of 100 in process": environment.log.batches(
                CALLERS, orders, BATCH, FEW_STREAMS
            ),
        },
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
    ).values()
    return [
        ratio(
            "HTTP batches / in process",
            over_http,
            in_process,
            against="in process",
            goal=HTTP_BATCH_GOAL,
        ),
        ratio(
            *("client batches / in process", client, in_process),
            against="in process",
            goal=CLIENT_BATCH_GOAL,
            aim=CLIENT_BATCH_AIM,
        ),
    ]
