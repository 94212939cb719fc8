"""B10, F9: a log works with every default isolation level of server, database or role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql

import seriatim
from seriatim import (
    EventType,
    ExpectedContext,
    ExpectedSeq,
    Filter,
    InvalidArgument,
    Log,
    NewEvent,
    Query,
    StreamKind,
)
from seriatim.core.handler import Delivery, Handler
from seriatim.delivery.claims import Claim
from seriatim.delivery.registry import Registry
from seriatim.factory import open_registry
from tests.faults.support import check_log_complete
from tests.fixtures.pgbouncer import Pgbouncer
from tests.integration.delivery.support import claim, make_event, make_handler

WRITERS = 8
ROUNDS = 12
LEVELS = ["serializable", "repeatable read"]


@pytest.fixture(params=LEVELS)
def strict_url(request: pytest.FixtureRequest, postgres_url: str) -> str:
    """The URL of a log in a database with a stricter default isolation level."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = sql.Identifier(postgres_url.rsplit("/", 1)[1])
        level = sql.Literal(request.param)
        statement = sql.SQL("alter database {} set default_transaction_isolation = {}")
        connection.execute(statement.format(name, level))
    return postgres_url


def plain(log: Log, writer: int, number: int) -> object:
    """Append one event."""
    return log.append([NewEvent("one", {"n": number}, stream=("s", str(writer)))])


def batch(log: Log, writer: int, number: int) -> object:
    """Append many events at once."""
    return log.append([NewEvent("many", {"n": number}, stream=("b", str(writer)))] * 40)


def condition(log: Log, writer: int, number: int) -> object:
    """Append under conditions on the writer's own stream and on an empty context."""
    stream = ("c", str(writer))
    last = ExpectedSeq(stream, number or None)
    nothing = ExpectedContext(Query([Filter(types=["never"])]), None)
    return log.append([NewEvent("conditional", {}, stream=stream)], [last, nothing])


@pytest.mark.parametrize("act", [plain, batch, condition])
def test_concurrent_appends_all_succeed(
    strict_url: str, act: Callable[[Log, int, int], object]
) -> None:
    """B10: concurrent appends of several logs meet no serialization failure."""
    logs = [seriatim.open(strict_url) for _ in range(2)]
    try:
        with ThreadPoolExecutor(WRITERS) as pool:

            def run(writer: int) -> None:
                for number in range(ROUNDS):
                    act(logs[writer % 2], writer, number)

            list(pool.map(run, range(WRITERS)))
    finally:
        for log in logs:
            log.close()
    size = 40 if act is batch else 1
    assert check_log_complete(strict_url) == WRITERS * ROUNDS * size


def test_event_loop_appends_succeed(strict_url: str) -> None:
    """B10: concurrent appends of an event loop meet no serialization failure."""

    async def run() -> None:
        with seriatim.open(strict_url) as one, seriatim.open(strict_url) as other:
            await asyncio.gather(
                *(
                    log.aio.append([NewEvent("a", {"n": n})])
                    for n in range(60)
                    for log in (one, other)
                )
            )

    asyncio.run(run())
    assert check_log_complete(strict_url) == 120


def test_appends_through_a_pooler_succeed(strict_url: str, bouncer: Pgbouncer) -> None:
    """B10, F9: appends through a pooler meet no serialization failure."""
    with (
        seriatim.open(bouncer.url_of(strict_url.rsplit("/", 1)[1])) as log,
        ThreadPoolExecutor(WRITERS) as pool,
    ):
        list(pool.map(lambda n: plain(log, n % WRITERS, n), range(60)))
        list(pool.map(lambda n: condition(log, n, 0), range(WRITERS)))
    assert check_log_complete(strict_url) == 60 + WRITERS


def test_exactly_one_conditional_append_succeeds(strict_url: str) -> None:
    """B9: of concurrent appends on one context version exactly one is stored."""
    context = Query([Filter(types=["seat"])])
    with seriatim.open(strict_url) as log, ThreadPoolExecutor(WRITERS) as pool:

        def take(_: int) -> bool:
            try:
                log.append([NewEvent("seat", {})], ExpectedContext(context, None))
            except seriatim.ConditionalAppendConflict:
                return False
            return True

        assert sum(pool.map(take, range(WRITERS))) == 1
        assert log.head() == 1


def test_concurrent_declarations_and_leases_succeed(strict_url: str) -> None:
    """B10: concurrent declarations and leases meet no serialization failure."""
    with (
        seriatim.open(strict_url) as log,
        seriatim.open(strict_url) as other,
        ThreadPoolExecutor(WRITERS) as pool,
    ):
        logs = (log, other)

        def declare(number: int) -> None:
            logs[number % 2].declare(StreamKind(name=f"kind-{number // 2}"))
            logs[number % 2].declare(EventType(event_type=f"type-{number // 2}"))

        def lease(number: int) -> bool:
            store: Any = logs[number % 2].store
            held = store.claim_lease("default", "one", f"owner-{number}", 30.0)
            return held is not None and store.renew_lease(held, 30.0)

        list(pool.map(declare, range(2 * WRITERS)))
        assert sum(pool.map(lease, range(4 * WRITERS))) == 1
        assert len(log.store.rules().types) == WRITERS


def claim_one(by: Handler, wanted: Delivery, registry: Registry) -> Claim:
    """Claim one event."""
    [found] = claim(registry, by, wanted)
    return found


def test_concurrent_claims_succeed(strict_url: str) -> None:
    """B10, G1: of concurrent claims of one event exactly one succeeds, without an error."""
    mailer = make_handler()
    with ThreadPoolExecutor(4) as pool:
        registries = [open_registry(strict_url) for _ in range(4)]
        try:
            for number in range(1, 16):
                event = make_event(None, event_id=f"e-{number}")
                found = list(pool.map(partial(claim_one, mailer, event), registries))
                assert [one.verdict for one in found].count("claimed") == 1
        finally:
            for registry in registries:
                registry.close()


def test_isolation_of_the_callers_transaction_is_reported(strict_url: str) -> None:
    """B10, B12: a caller's transaction at another level is refused with the level and remedy."""
    with seriatim.open(strict_url) as log, psycopg.connect(strict_url) as connection:
        with pytest.raises(InvalidArgument, match=r"at (SERIALIZABLE|REPEATABLE READ): set conn"):
            log.append([NewEvent("a", {})], connection=connection)
        connection.rollback()
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        log.append([NewEvent("a", {})], connection=connection)
        connection.commit()
        assert log.head() == 1
