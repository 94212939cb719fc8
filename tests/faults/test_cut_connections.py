"""Connections lost around COMMIT: nothing is stored, or the outcome is ambiguous until repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import seriatim
from seriatim import Command, ExpectedContext, Filter, NewEvent, Query
from seriatim.core.profile_rules import LOG_PROFILE
from seriatim.store.committer import QueuedAppend
from tests.faults.support import VALIDATED, check_log_complete
from tests.fixtures.proxy import Fault, TcpProxy

StartProxy = Callable[[str], TcpProxy]

COMMIT = b"commit\x00"  # with its end: every BEGIN contains `read committed`
ABSENT = ExpectedContext(Query([Filter(types=["placed"])]), None)


def fast_path(log: seriatim.Log, number: int = 1) -> Any:
    """Append on the fast path, with an event id that a repeat finds."""
    return log.append([NewEvent("placed", {"n": number}, event_id=f"e-{number}")])


def fast_path_by_key(log: seriatim.Log, number: int = 1) -> Any:
    """Append on the fast path, with a key for the append."""
    events = [NewEvent("placed", {"n": n}, stream=("s", "1")) for n in range(3)]
    return log.append(events, idempotency_key=f"k-{number}")


def conditional(log: seriatim.Log, number: int = 1) -> Any:
    """Append on the fast path, with a context condition that holds."""
    return log.append([NewEvent("placed", {"n": number}, event_id=f"e-{number}")], ABSENT)


def validated(log: seriatim.Log, number: int = 1) -> Any:
    """Append on the validated path, under a condition on a context."""
    event = NewEvent("placed", {"n": number}, event_id=f"e-{number}")
    return log.append([event], [ABSENT, VALIDATED])


def batch(log: seriatim.Log, number: int = 1) -> Any:
    """Append a large batch."""
    events = [NewEvent("placed", {"n": n}, event_id=f"c-{number}-{n}") for n in range(100)]
    return log.append(events)


def with_command(log: seriatim.Log, number: int = 1) -> Any:
    """Append with a command, whose duplicate gets the stored response."""
    command = Command(actor="a", endpoint="/orders", key=f"c-{number}", response={"n": number})
    return log.append([NewEvent("placed", {"n": number})], command=command)


APPENDS = [
    (fast_path, b"append_events", 1),
    (fast_path_by_key, b"append_events", 3),
    (conditional, b"append_events", 1),
    (validated, COMMIT, 1),
    (batch, b"append_events", 100),
    (with_command, COMMIT, 1),
]


def open_warm(proxy: TcpProxy) -> seriatim.Log:
    """Open a log through a proxy and append once, so that its connections are open."""
    log = seriatim.open(proxy.url)
    log.append([NewEvent("first", {})])
    return log


@pytest.mark.parametrize(("append", "marker", "count"), APPENDS)
def test_lost_request_to_commit(
    proxy_to: StartProxy, postgres_url: str, append: Callable[..., Any], marker: bytes, count: int
) -> None:
    """B10: a COMMIT that never reached the server stores nothing; the retry stores it once."""
    proxy = proxy_to(postgres_url)
    with open_warm(proxy) as log:
        fault: Fault = proxy.drop_requests_with(marker)
        with pytest.raises(seriatim.BackendFailure) as failed:
            append(log)
        fault.wait()
        stored = log.head()
        receipt = append(log)

    assert (failed.value.ambiguous, failed.value.retryable) == (True, True)
    assert stored == 1
    assert (receipt.first_position, receipt.count, receipt.replayed) == (2, count, False)
    assert check_log_complete(postgres_url) == 1 + count


@pytest.mark.parametrize(("append", "marker", "count"), APPENDS)
def test_lost_response_to_commit(
    proxy_to: StartProxy, postgres_url: str, append: Callable[..., Any], marker: bytes, count: int
) -> None:
    """B10: a commit without a response is ambiguous, and the repeat returns the stored copy."""
    proxy = proxy_to(postgres_url)
    with open_warm(proxy) as log:
        fault = proxy.drop_replies_after(marker)
        with pytest.raises(seriatim.BackendFailure) as failed:
            append(log)
        fault.wait()
        stored = log.head()
        receipt = append(log)

    assert (failed.value.ambiguous, failed.value.retryable) == (True, True)
    assert "repeat" in failed.value.message
    assert stored == 1 + count
    assert (receipt.first_position, receipt.count, receipt.replayed) == (2, count, True)
    assert check_log_complete(postgres_url) == 1 + count


@pytest.mark.parametrize(
    "marker",
    [b"begin isolation", b"pg_advisory_xact_lock", b"transaction_isolation", b"append_events"],
)
def test_connection_lost_before_commit_is_not_ambiguous(
    proxy_to: StartProxy, postgres_url: str, marker: bytes
) -> None:
    """B10, B13: a connection lost before COMMIT is reported as not stored."""
    proxy = proxy_to(postgres_url)
    with open_warm(proxy) as log:
        fault = proxy.drop_requests_with(marker)
        with pytest.raises(seriatim.BackendFailure) as failed:
            validated(log)
        fault.wait()
        stored = log.head()
        receipt = validated(log)

    assert (failed.value.ambiguous, failed.value.retryable) == (False, True)
    assert (stored, receipt.replayed) == (1, False)
    assert check_log_complete(postgres_url) == 2


def error_of(ticket: QueuedAppend) -> Exception | None:
    """Wait for the outcome, and return it if it is an error."""
    try:
        ticket.result(20)
    except seriatim.SeriatimError as error:
        return error
    return None


def test_all_appends_of_a_lost_group_are_ambiguous(proxy_to: StartProxy, postgres_url: str) -> None:
    """B10, L2: all appends that shared a lost commit are ambiguous, and all repeats resolve."""
    proxy = proxy_to(postgres_url)
    with open_warm(proxy) as log:
        proxy.pause()
        futures = []
        for number in range(20):
            event = NewEvent("placed", {"n": number}, event_id=f"e-{number}")
            request = log.appender.prepare_request(log.draft(LOG_PROFILE, [event]))
            futures.append(log.appender.submission.submit(request))
        fault = proxy.drop_replies_after(b"append_events")
        proxy.resume()
        failures = [error for future in futures if (error := error_of(future))]
        fault.wait()
        receipts = [fast_path(log, number) for number in range(20)]

    assert failures
    assert all(isinstance(error, seriatim.BackendFailure) and error.ambiguous for error in failures)
    assert len({receipt.first_position for receipt in receipts}) == 20
    assert check_log_complete(postgres_url) == 21


def test_refused_connections_are_not_ambiguous(proxy_to: StartProxy, postgres_url: str) -> None:
    """B10, L2: an unreachable server is a retryable failure, never ambiguous or an empty result."""
    proxy = proxy_to(postgres_url)
    settings = seriatim.Settings(connect_timeout_s=2)
    with seriatim.open(proxy.url, settings=settings) as log:
        log.append([NewEvent("first", {})])
        proxy.cut(refuse=True)
        with pytest.raises(seriatim.BackendFailure) as append:
            fast_path(log)
        with pytest.raises(seriatim.BackendFailure) as read:
            log.head()
        proxy.resume()
        fast_path(log)
        assert log.head() == 2

    assert (append.value.ambiguous, append.value.retryable) == (False, True)
    assert read.value.retryable
