"""A pgbouncer whose server connection is lost around COMMIT."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import seriatim
from seriatim import NewEvent
from seriatim.core.profile_rules import LOG_PROFILE
from seriatim.store.engine import EnginePurpose
from seriatim.store.postgres.connection import parse_url
from seriatim.store.postgres.engine import PostgresEngine
from tests.faults.support import check_log_complete
from tests.faults.test_cut_connections import APPENDS
from tests.fixtures.pgbouncer import Pgbouncer
from tests.fixtures.proxy import TcpProxy
from tests.fixtures.service import run_service
from tests.service.http_calls import Caller

StartProxy = Callable[[str], TcpProxy]
StartPooler = Callable[[str], Pgbouncer]
Append = Callable[..., Any]


@pytest.fixture
def lossy_pooler(
    proxy_to: StartProxy, pgbouncer_to: StartPooler, postgres_url: str
) -> tuple[TcpProxy, str]:
    """A proxy between pgbouncer and Postgres, and the log's URL through pgbouncer."""
    proxy = proxy_to(postgres_url)
    return proxy, pgbouncer_to(proxy.url).url


@pytest.mark.parametrize(("append", "marker", "count"), APPENDS)
def test_lost_response_to_a_pooler_is_ambiguous(
    lossy_pooler: tuple[TcpProxy, str], postgres_url: str, append: Append, marker: bytes, count: int
) -> None:
    """B10: a stored append for which pgbouncer reports 08P01 is ambiguous; a repeat finds it."""
    proxy, url = lossy_pooler
    with seriatim.open(url) as log:
        log.append([NewEvent("first", {})])
        fault = proxy.drop_replies_after(marker)
        with pytest.raises(seriatim.BackendFailure) as failed:
            append(log)
        fault.wait()
        stored = log.head()
        receipt = append(log)

    assert (failed.value.ambiguous, failed.value.retryable) == (True, True)
    assert stored == 1 + count
    assert (receipt.first_position, receipt.count, receipt.replayed) == (2, count, True)
    assert check_log_complete(postgres_url) == 1 + count


@pytest.mark.parametrize(("append", "marker", "count"), APPENDS)
def test_lost_request_of_a_pooler_is_ambiguous(
    lossy_pooler: tuple[TcpProxy, str], postgres_url: str, append: Append, marker: bytes, count: int
) -> None:
    """B10: an append lost between pgbouncer and Postgres is ambiguous; a repeat stores it."""
    proxy, url = lossy_pooler
    with seriatim.open(url) as log:
        log.append([NewEvent("first", {})])
        fault = proxy.drop_requests_with(marker)
        with pytest.raises(seriatim.BackendFailure) as failed:
            append(log)
        fault.wait()
        receipt = append(log)

    assert failed.value.ambiguous
    assert (receipt.first_position, receipt.count, receipt.replayed) == (2, count, False)
    assert check_log_complete(postgres_url) == 1 + count


@pytest.mark.parametrize("appends", [1, 40], ids=["one", "group"])
def test_lost_response_to_a_pooler_on_an_event_loop(
    lossy_pooler: tuple[TcpProxy, str], postgres_url: str, appends: int
) -> None:
    """B10: failed appends of a loop that are not ambiguous are not stored; repeats store once."""
    proxy, url = lossy_pooler

    async def scenario() -> None:
        with seriatim.open(url) as log:
            await log.aio.append([NewEvent("first", {})])
            fault = proxy.drop_replies_after(b"append_events")
            events = [NewEvent("placed", {"n": n}, event_id=f"e-{n}") for n in range(appends)]
            found = await asyncio.gather(
                *(log.aio.append([event]) for event in events), return_exceptions=True
            )
            fault.wait()
            failures = [one for one in found if isinstance(one, seriatim.BackendFailure)]
            stored = {record.event_id for record in log.read()}
            for event, outcome in zip(events, found, strict=True):
                if isinstance(outcome, seriatim.BackendFailure) and not outcome.ambiguous:
                    assert event.event_id not in stored
            again = [await log.aio.append([event]) for event in events]

        assert failures
        assert any(failure.ambiguous for failure in failures)
        assert len({receipt.first_position for receipt in again}) == appends

    asyncio.run(scenario())
    assert check_log_complete(postgres_url) == 1 + appends


def test_service_with_a_pooler_reports_ambiguity(
    lossy_pooler: tuple[TcpProxy, str], postgres_url: str
) -> None:
    """B10: an HTTP caller reads `ambiguous: true`, and the same event id finds the stored copy."""
    proxy, url = lossy_pooler
    with run_service(url) as service:
        caller = Caller(service.port, service.token())
        first = {"events": [{"event_type": "first", "payload": {}}]}
        assert caller("POST", "/v1/events", first).status == 201
        body = {"events": [{"event_type": "placed", "payload": {}, "event_id": "e-1"}]}
        fault = proxy.drop_replies_after(b"append_events")
        lost = caller("POST", "/v1/events", body)
        fault.wait()
        again = caller("POST", "/v1/events", body)

    assert (lost.status, lost.json["code"]) == (503, "backend_failure")
    assert lost.json["details"]["ambiguous"] is True
    assert again.status == 201
    assert again.json["first_position"] == 2
    assert check_log_complete(postgres_url) == 2


def test_client_of_a_service_with_a_pooler_stores_once(
    lossy_pooler: tuple[TcpProxy, str], postgres_url: str
) -> None:
    """B10: the client repeats a lost append, which is stored once and is no replay."""
    proxy, url = lossy_pooler
    with run_service(url) as service, seriatim.open(service.url, token=service.token()) as log:
        log.append([NewEvent("first", {})])
        fault = proxy.drop_replies_after(b"append_events")
        receipt = log.append([NewEvent("placed", {})])
        fault.wait()

    assert (receipt.first_position, receipt.replayed) == (2, False)
    assert check_log_complete(postgres_url) == 2


PURPOSE = EnginePurpose(
    label="the test's tables", target_option="--target", last_table="none", recreate_hint="none"
)


@pytest.mark.parametrize("behind_pooler", [True, False], ids=["pooler", "direct"])
@pytest.mark.parametrize("lost", ["request", "answer"])
def test_lost_commit_of_a_read_model_is_ambiguous(
    lossy_pooler: tuple[TcpProxy, str], lost: str, *, behind_pooler: bool
) -> None:
    """B10, L2: a read-model transaction whose COMMIT is lost is ambiguous."""
    proxy, url = lossy_pooler
    at = parse_url(url if behind_pooler else proxy.url, seriatim.Settings())
    engine = PostgresEngine(at, PURPOSE)
    with engine.transaction() as session:
        session.run("create table kept (n bigint)")
    drop = proxy.drop_requests_with if lost == "request" else proxy.drop_replies_after
    fault = drop(b"COMMIT\0")
    with pytest.raises(seriatim.BackendFailure) as failed, engine.transaction() as session:
        session.run("insert into kept values (1)")
    fault.wait()
    with engine.transaction(write=False) as session:
        [[stored]] = session.run("select count(*) from kept")
    engine.close()

    assert (failed.value.ambiguous, failed.value.retryable) == (True, True)
    assert stored == (0 if lost == "request" else 1)


def test_read_model_lost_before_commit_is_not_ambiguous(lossy_pooler: tuple[TcpProxy, str]) -> None:
    """B10: a read-model transaction lost before COMMIT is not ambiguous and not stored."""
    proxy, url = lossy_pooler
    engine = PostgresEngine(parse_url(url, seriatim.Settings()), PURPOSE)
    with engine.transaction() as session:
        session.run("create table kept (n bigint)")
    fault = proxy.drop_replies_after(b"insert into kept")
    with pytest.raises(seriatim.BackendFailure) as failed, engine.transaction() as session:
        session.run("insert into kept values (1)")
    fault.wait()
    with engine.transaction(write=False) as session:
        [[stored]] = session.run("select count(*) from kept")
    engine.close()

    assert (failed.value.ambiguous, failed.value.retryable) == (False, True)
    assert stored == 0


@pytest.mark.parametrize("waits", ["in its thread", "on a loop"])
def test_rows_without_the_end_of_the_response_are_ambiguous(
    proxy_to: StartProxy, postgres_url: str, waits: str
) -> None:
    """B10, L2: an append whose response has rows but no end is ambiguous."""
    proxy = proxy_to(postgres_url)
    with seriatim.open(proxy.url) as log:
        log.append([NewEvent("first", {})])
        fault = proxy.drop_replies_after(b"append_events", passes_rows=True)
        event = NewEvent("placed", {}, event_id="e-1")
        if waits == "in its thread":
            request = log.appender.prepare_request(log.draft(LOG_PROFILE, [event]))
            [outcome] = log.store.commit_now([request], 30.0) or []
        else:
            [outcome] = asyncio.run(_gathered(log, event))
        fault.wait()

    assert isinstance(outcome, seriatim.BackendFailure)
    assert outcome.ambiguous


async def _gathered(log: seriatim.Log, event: NewEvent) -> tuple[Any, ...]:
    return await asyncio.gather(log.aio.append([event]), return_exceptions=True)


def test_a_raised_epoch_without_a_response_is_ambiguous(
    lossy_pooler: tuple[TcpProxy, str], postgres_url: str
) -> None:
    """B10, F8: raising the epoch is ambiguous if its response is lost."""
    proxy, url = lossy_pooler
    with seriatim.open(url) as log:
        before = log.identity().epoch
        fault = proxy.drop_replies_after(b"raise_epoch")
        with pytest.raises(seriatim.BackendFailure) as failed:
            log.store.raise_epoch()
        fault.wait()
    with seriatim.open(postgres_url) as log:
        assert log.identity().epoch == before + 1

    assert (failed.value.ambiguous, failed.value.retryable) == (True, True)
