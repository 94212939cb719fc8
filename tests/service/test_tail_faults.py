"""Tails under faults: expired tokens, failing reads, shutdowns; no event missed or repeated."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from seriatim.api import hub as hub_module
from seriatim.api.tail_buffer import TailChunk
from seriatim.core.errors import BackendFailure
from tests.faults.support import wait_until
from tests.fixtures.service import RunningService
from tests.service.http_calls import Caller, make_caller, make_event, open_tail
from tests.service.service_process import run_service_process


def test_no_position_is_sent_before_its_events(
    quick: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E5: an append during the token check of a quiet tail is sent before its position."""
    caller = make_caller(quick, tenant_id="positions")
    looking, appended = threading.Event(), threading.Event()
    real = quick.service.authenticate

    async def slow(headers: Any) -> Any:
        found = await real(headers)
        if found.tenant_id == "positions" and asyncio.current_task() is not None:
            looking.set()
            await asyncio.to_thread(appended.wait, 10)
            await asyncio.sleep(0.3)  # until the hub has distributed the append
        return found

    messages: list[dict[str, Any]] = []
    with open_tail(caller, after=0, keep_alive_s=0.05) as tail:
        lines = tail.lines()
        next(lines)
        monkeypatch.setattr(quick.service, "authenticate", slow)
        assert looking.wait(10)
        monkeypatch.setattr(quick.service, "authenticate", real)
        position = caller.append(make_event()).json["last_position"]
        appended.set()
        for line in lines:
            messages.append(line)
            if line["position"] >= position:
                break

    assert "records" in messages[-1], messages


def test_a_failed_read_causes_no_duplicates(
    quick: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E5: a tail that left its channel after a failed read receives each append once."""
    caller = make_caller(quick, tenant_id="failing")
    real = hub_module._read_new_appends
    failures = iter(range(1))

    def failing(log: Any, tenant_id: str, *rest: Any) -> Any:
        if tenant_id == "failing" and next(failures, None) is not None:
            raise BackendFailure("for a moment")
        return real(log, tenant_id, *rest)

    monkeypatch.setattr(hub_module, "_read_new_appends", failing)
    hub = quick.service.hub
    with open_tail(caller, after=0, keep_alive_s=60) as tail:
        lines = tail.lines()
        next(lines)
        channel = hub._channels["failing"]
        [member] = channel.members
        # Like a slow reader: appends are offered to its buffer while it lags.
        held = asyncio.run_coroutine_threadsafe(offer_while_lagging(member), quick._loop)
        first = caller.append(make_event()).json["last_position"]
        held.result(10)
        last = caller.append(make_event()).json["last_position"]
        seen = []
        for line in lines:
            seen += [record["position"] for record in line.get("records", ())]
            if line["position"] >= last:
                break
        time.sleep(0.2)
        caller.append(make_event("end"))
        for line in lines:
            seen += [record["position"] for record in line.get("records", ())]
            if line.get("records", [{}])[-1].get("event_type") == "end":
                break

    assert seen == sorted(set(seen))
    assert {first, last} <= set(seen)


async def offer_while_lagging(member: Any) -> None:
    """Wait until a tail lags, and offer it an append at that moment."""
    for _ in range(2000):
        if member.lagging:
            assert not member.offer(TailChunk(1, b"{}"))
            return
        await asyncio.sleep(0.001)


def test_a_tail_begins_after_the_minimum_position_of_its_query(quick: RunningService) -> None:
    """D4, E5: a tail sends no new event at or before the query's min_position."""
    caller = make_caller(quick, tenant_id="later")
    head = caller.append(make_event()).json["last_position"]
    query = f'{{"min_position": {head + 1}}}'
    with open_tail(caller, after=0, query=query, keep_alive_s=0.05) as tail:
        lines = tail.lines()
        next(lines)
        positions = [caller.append(make_event()).json["last_position"] for _ in range(3)]
        for line in lines:
            if "records" in line:
                assert line["records"][0]["position"] > head + 1
            if line["position"] >= positions[-1]:
                break


# -- revoked tokens


def test_a_long_poll_ends_with_its_token(quick: RunningService) -> None:
    """K4: a long poll whose token is revoked ends with 401 instead of newer events."""
    caller, other = make_caller(quick, tenant_id="polled"), make_caller(quick, tenant_id="polled")
    head = caller.append(make_event()).json["last_position"]
    responses = []
    polling = threading.Thread(
        target=lambda: responses.append(caller("GET", "/v1/events", after=head, wait_s=20))
    )
    polling.start()
    time.sleep(0.3)
    assert caller.token is not None
    quick.service.access.revoke(caller.token.split("_")[1])
    wait_until(lambda: caller("GET", "/v1/log").status == 401, "revoked", within_s=10)
    other.append(make_event())
    polling.join(30)

    assert [response.status for response in responses] == [401]


def test_a_slow_tail_ends_with_its_token(
    serving: Callable[..., RunningService],
) -> None:
    """K4: a tail with unsent events ends soon after its token is revoked."""
    service = serving()
    caller = make_caller(service, tenant_id="slow")
    for _ in range(40):
        assert caller.append(make_event(payload={"a": "x" * 900_000})).status == 201
    with open_tail(caller, after=0) as tail:
        tail.response.readline()  # the tail has started, and its reader pauses
        assert caller.token is not None
        service.service.access.revoke(caller.token.split("_")[1])
        wait_until(lambda: caller("GET", "/v1/log").status == 401, "revoked", within_s=10)
        time.sleep(1.5)  # until the tokens of open tails are checked
        rest = list(tail.lines())

    assert rest[-1]["problem"]["code"] == "unauthorized"
    assert len(rest) < 35


# -- shutdown


@pytest.mark.parametrize("path", ["/v1/log?after=1000&wait_s=50", "/v1/events?wait_s=50"])
def test_long_polls_end_with_the_service(tmp_path: Any, path: str) -> None:
    """E6: on SIGTERM long polls return 200, and the service ends within seconds."""
    with run_service_process(f"sqlite:///{tmp_path}/log.db") as service:
        caller: Caller = service.caller()
        responses = []

        def poll() -> None:
            with suppress(OSError):
                responses.append(caller("GET", path))

        polling = threading.Thread(target=poll)
        polling.start()
        time.sleep(1.0)
        began = time.monotonic()
        assert service.terminate() == 0
        took = time.monotonic() - began
        polling.join(30)

    assert [response.status for response in responses] == [200]
    assert took < 10
