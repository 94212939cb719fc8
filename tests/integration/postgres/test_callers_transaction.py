"""B12: appends in a transaction of the caller, sync and async."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.rows import dict_row

import seriatim
from seriatim import (
    Command,
    EventType,
    ExpectedContext,
    ExpectedSeq,
    Filter,
    NewEvent,
    Query,
    Settings,
    StreamKind,
)

CART = ("cart", "c-1")


@pytest.fixture
def log(postgres_url: str) -> Iterator[seriatim.Log]:
    """An open log, and a table of the caller in the same database."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute("create table stock (item text primary key, left_over int)")
        connection.execute("insert into stock values ('tea', 5)")
    with seriatim.open(postgres_url) as opened:
        yield opened


@pytest.fixture
def connection(postgres_url: str, log: seriatim.Log) -> Iterator[psycopg.Connection[Any]]:
    """The caller's connection."""
    with psycopg.connect(postgres_url) as opened:
        yield opened


@pytest.fixture
async def async_connection(
    postgres_url: str, log: seriatim.Log
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """The caller's async connection."""
    async with await psycopg.AsyncConnection.connect(postgres_url) as opened:
        yield opened


def left_over(url: str) -> int:
    """Read the caller's state over a separate connection."""
    with psycopg.connect(url) as connection:
        row = connection.execute("select left_over from stock").fetchone()
    assert row is not None
    return int(row[0])


def sold(n: int = 1) -> list[NewEvent]:
    """Make an event in a stream."""
    return [NewEvent("sold", {"n": n}, stream=CART, tags=("tea",))]


TAKE = "update stock set left_over = left_over - 1"


@pytest.mark.parametrize("commits", [True, False])
def test_state_and_events_commit_together(
    log: seriatim.Log, connection: psycopg.Connection[Any], postgres_url: str, commits: bool
) -> None:
    """B12: with the caller's commit state and events are stored, with a rollback neither."""
    connection.execute(TAKE)
    receipt = log.append(sold(), connection=connection)
    many = log.append([NewEvent("many", {"n": n}) for n in range(50)], connection=connection)
    before = (log.head(), left_over(postgres_url))
    if commits:
        connection.commit()
    else:
        connection.rollback()

    assert (receipt.first_position, many.first_position, many.last_position) == (1, 2, 51)
    assert before == (0, 5)
    assert (log.head(), left_over(postgres_url)) == ((51, 4) if commits else (0, 5))
    assert log.append(sold()).first_position == (52 if commits else 1)  # nothing was consumed


@pytest.mark.parametrize("commits", [True, False])
async def test_async_state_and_events_commit_together(
    log: seriatim.Log,
    async_connection: psycopg.AsyncConnection[Any],
    postgres_url: str,
    commits: bool,
) -> None:
    """B12: an async caller commits or rolls back state and events together."""
    await async_connection.execute(TAKE)
    receipt = await log.aio.append(sold(), connection=async_connection)
    many = [NewEvent("many", {"n": n}) for n in range(50)]
    await log.aio.append(many, ExpectedSeq(CART, 1), connection=async_connection)
    assert await log.aio.head() == 0
    if commits:
        await async_connection.commit()
    else:
        await async_connection.rollback()

    assert receipt.records[0].stream_seq == 1
    assert (await log.aio.head(), left_over(postgres_url)) == ((51, 4) if commits else (0, 5))


def test_refusals_are_the_same_and_leave_the_transaction_usable(
    log: seriatim.Log, connection: psycopg.Connection[Any], postgres_url: str
) -> None:
    """B12: a refused append raises the usual error, and the caller's transaction continues."""
    log.append([NewEvent("sold", {"n": 0}, stream=CART, event_id="e-0")], idempotency_key="k")
    context = Query([Filter(types=["sold"])])
    connection.execute(TAKE)
    for error, events, options in (
        (seriatim.EventSequenceInvalid, sold(), {"condition": ExpectedSeq(CART, 7)}),
        (
            seriatim.ConditionalAppendConflict,
            sold(),
            {"condition": ExpectedContext(context, None)},
        ),
        (seriatim.IdempotencyConflict, sold(9), {"idempotency_key": "k"}),
        (
            seriatim.IdempotencyConflict,
            [NewEvent("sold", {"n": 9}, stream=CART, event_id="e-0")],
            {},
        ),
        (seriatim.EmptyAppend, [], {}),
        (seriatim.InvalidEvent, [NewEvent("", {})], {}),
    ):
        with pytest.raises(error):
            log.append(events, connection=connection, **options)
    receipt = log.append(sold(), ExpectedSeq(CART, 1), connection=connection)
    connection.commit()

    assert receipt.records[0].stream_seq == 2
    assert (log.head(), left_over(postgres_url)) == (2, 4)


async def test_async_refusal_leaves_the_transaction_usable(
    log: seriatim.Log, async_connection: psycopg.AsyncConnection[Any], postgres_url: str
) -> None:
    """B12: a refused async append leaves the caller's transaction usable."""
    await async_connection.execute(TAKE)
    with pytest.raises(seriatim.EventSequenceInvalid):
        await log.aio.append(sold(), ExpectedSeq(CART, 3), connection=async_connection)
    await log.aio.append(sold(), ExpectedSeq(CART, None), connection=async_connection)
    await async_connection.commit()

    assert (await log.aio.head(), left_over(postgres_url)) == (1, 4)


def test_keys_and_commands_in_the_callers_transaction(
    log: seriatim.Log, connection: psycopg.Connection[Any]
) -> None:
    """B12, C4, C5: keys and commands are recognised in the caller's transaction."""
    command = Command(actor="a", endpoint="/sell", key="1", request={"n": 1}, response={"ok": 1})
    first = log.append(sold(), command=command, connection=connection)
    duplicate = log.append(sold(), command=command, connection=connection)
    keyed = log.append(sold(2), idempotency_key="k", connection=connection)
    again = log.append(sold(2), idempotency_key="k", connection=connection)
    other = Command(actor="a", endpoint="/sell", key="1", request={"n": 2})
    with pytest.raises(seriatim.IdempotencyKeyReuse):
        log.append(sold(), command=other, connection=connection)
    connection.commit()
    later = log.append(sold(), command=command)

    assert (first.replayed, duplicate.replayed, keyed.replayed, again.replayed) == (
        False,
        True,
        False,
        True,
    )
    assert (duplicate.response, later.response, later.replayed) == ({"ok": 1}, {"ok": 1}, True)
    assert log.head() == 2


def test_conditions_see_the_callers_own_appends(
    log: seriatim.Log, connection: psycopg.Connection[Any]
) -> None:
    """B12, D5: a condition includes earlier appends of the same transaction."""
    context = Query([Filter(types=["sold"])])
    log.append(sold(), ExpectedContext(context, None), connection=connection)
    with pytest.raises(seriatim.ConditionalAppendConflict) as refused:
        log.append(sold(), ExpectedContext(context, None), connection=connection)
    log.append(sold(), ExpectedContext(context, 1), connection=connection)
    connection.commit()

    assert refused.value.actual == 1
    assert log.query(context).context_version == 2


def test_lock_is_held_until_the_caller_commits(
    log: seriatim.Log, connection: psycopg.Connection[Any]
) -> None:
    """B12: another writer waits until the caller commits, and gets the next position."""
    log.append(sold(), connection=connection)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(log.append, sold())
        time.sleep(0.3)
        waited = not waiting.done()
        connection.commit()
        receipt = waiting.result(timeout=10)

    assert waited
    assert (receipt.first_position, receipt.records[0].stream_seq) == (2, 2)


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_other_isolation_levels_are_refused(
    log: seriatim.Log, connection: psycopg.Connection[Any], level: IsolationLevel
) -> None:
    """B12: REPEATABLE READ and SERIALIZABLE are refused in the caller's transaction."""
    connection.isolation_level = level
    with pytest.raises(seriatim.InvalidArgument, match="READ COMMITTED"):
        log.append(sold(), connection=connection)
    connection.rollback()

    assert log.head() == 0


def test_autocommit_is_refused_outside_a_transaction(log: seriatim.Log, postgres_url: str) -> None:
    """B12: a connection in autocommit mode is refused unless a transaction is open."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        with pytest.raises(seriatim.InvalidArgument, match="autocommit"):
            log.append(sold(), connection=connection)
        with connection.transaction():
            log.append(sold(), connection=connection)

    assert log.head() == 1


async def test_async_autocommit_and_isolation_are_refused(
    log: seriatim.Log, postgres_url: str
) -> None:
    """B12: async connections in autocommit mode or at another isolation level are refused."""
    connect = psycopg.AsyncConnection.connect
    async with await connect(postgres_url, autocommit=True) as connection:
        with pytest.raises(seriatim.InvalidArgument, match="autocommit"):
            await log.aio.append(sold(), connection=connection)
    async with await connect(postgres_url) as connection:
        await connection.set_isolation_level(IsolationLevel.SERIALIZABLE)
        with pytest.raises(seriatim.InvalidArgument, match="READ COMMITTED"):
            await log.aio.append(sold(), connection=connection)


def test_foreign_connections_are_refused(log: seriatim.Log) -> None:
    """B12: other objects and connections to other backends are refused."""
    with pytest.raises(seriatim.InvalidArgument):
        log.append(sold(), connection="postgresql://")
    with seriatim.open("memory:") as memory, pytest.raises(seriatim.InvalidArgument):
        memory.append(sold(), connection=object())


async def test_sync_and_async_connections_are_not_interchangeable(
    log: seriatim.Log,
    connection: psycopg.Connection[Any],
    async_connection: psycopg.AsyncConnection[Any],
) -> None:
    """B12: an async connection needs the awaited append, a sync one the synchronous append."""
    with pytest.raises(seriatim.InvalidArgument, match="aio"):
        log.append(sold(), connection=async_connection)
    with pytest.raises(seriatim.InvalidArgument):
        await log.aio.append(sold(), connection=connection)
    connection.rollback()

    assert await log.aio.head() == 0


@pytest.mark.parametrize("factory", [psycopg.Cursor, psycopg.ClientCursor])
def test_row_and_cursor_factories_of_the_caller_are_ignored(
    log: seriatim.Log, postgres_url: str, factory: type[psycopg.Cursor[Any]]
) -> None:
    """B12: dict rows and another kind of cursor on the caller's connection change nothing."""
    with psycopg.connect(postgres_url, row_factory=dict_row, cursor_factory=factory) as connection:
        log.append(sold(), ExpectedSeq(CART, None), connection=connection)
        log.append(sold(), idempotency_key="k", connection=connection)
        log.append(sold(), idempotency_key="k", connection=connection)
        assert connection.execute("select 1 as one").fetchone() == {"one": 1}

    assert log.head() == 2


def test_savepoint_rolls_back_its_append(
    log: seriatim.Log, connection: psycopg.Connection[Any]
) -> None:
    """B12: an append rolled back with a savepoint leaves its position to the next one."""
    log.append(sold(), connection=connection)

    with connection.transaction(force_rollback=True):
        log.append(sold(), connection=connection)
    receipt = log.append(sold(), connection=connection)
    connection.commit()

    assert (receipt.first_position, log.head()) == (2, 2)


def test_new_declarations_apply_in_the_callers_transaction(
    log: seriatim.Log, connection: psycopg.Connection[Any], postgres_url: str
) -> None:
    """B12, A8: rules that another process declared apply in the caller's transaction."""
    with seriatim.open(postgres_url) as other:
        other.declare(
            StreamKind(name="cart", catalogue="closed"), EventType(event_type="sold", kind="cart")
        )
    log.append(sold(), connection=connection)
    with pytest.raises(seriatim.SeriatimError):
        log.append([NewEvent("stolen", {}, stream=CART)], connection=connection)
    connection.commit()

    assert log.head() == 1


def test_lost_connection_of_the_caller(log: seriatim.Log, postgres_url: str) -> None:
    """B12, L2: the caller's broken connection is `backend_failure`; the log keeps working."""
    connection = psycopg.connect(postgres_url)
    pid = connection.info.backend_pid
    connection.execute("select 1")
    with psycopg.connect(postgres_url) as admin:
        admin.execute("select pg_terminate_backend(%s)", (pid,))
    with pytest.raises(seriatim.BackendFailure):
        log.append(sold(), connection=connection)
    connection.close()

    assert log.append(sold(), timeout=Settings().timeout_s).first_position == 1
