"""An append whose response is lost and whose service is unreachable is reported as ambiguous."""

from __future__ import annotations

import asyncio
import socket
from http.client import HTTPConnection
from typing import Any, cast

import msgspec
import pytest

import seriatim
from seriatim import BackendFailure, NewEvent, Settings
from seriatim.client.exchange import HttpExchange
from seriatim.client.store import HttpStore
from seriatim.core.profile_rules import LOG_PROFILE
from seriatim.store.port import Deferred
from tests.faults.event_loops import gather_outcomes, make_event
from tests.fixtures.proxy import TcpProxy
from tests.fixtures.service import RunningService
from tests.service.scripted_server import (
    ScriptedResponse,
    append_results,
    problem_response,
    refused_part,
)
from tests.service.test_client_async_appends import APPENDS, stored, warm_up


def leave_one_connection(log: seriatim.Log) -> None:
    """Close all idle connections but one, and direct new ones to a closed port."""
    used = cast("HttpStore", log.store).http._connections
    while len(used._idle) > 1:
        used._idle.pop().close()
    with socket.create_server(("127.0.0.1", 0)) as unused:
        used._port = unused.getsockname()[1]


def test_an_unanswered_append_of_a_loop_stays_ambiguous(quick: RunningService) -> None:
    """B10: an append without a response stays ambiguous when its retries reach no service."""

    async def act() -> tuple[list[Any], list[Any]]:
        settings = Settings(timeout_s=2.0, connect_timeout_s=1.0)
        token = quick.token(tenant_id="unanswered")
        with seriatim.open(proxy.url, token=token, settings=settings) as log:
            await warm_up(log)
            leave_one_connection(log)
            lost = proxy.drop_replies_after(APPENDS, ends=b"")
            found = await gather_outcomes(log.aio.append(make_event("sent"), timeout=60))
            lost.wait()
            return found, await gather_outcomes(
                log.aio.append(make_event("never sent"), timeout=60)
            )

    with TcpProxy(quick.url) as proxy:
        [sent], [never] = asyncio.run(act())

    assert stored(quick, "unanswered") == ["sent"]  # which the caller cannot know
    assert (type(sent), sent.ambiguous) == (BackendFailure, True)
    assert (type(never), never.ambiguous) == (BackendFailure, False)


async def _deferred(response: ScriptedResponse) -> list[Any]:
    """Let an append of a loop receive a response; return the appends that are sent again."""
    status, headers, body = response
    with seriatim.open("memory:") as log:
        request = log.appender.prepare_request(log.draft(LOG_PROFILE, [NewEvent("sent", {})]))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = HTTPConnection("nobody.invalid")
        connection.sock = ours
        group = [msgspec.structs.replace(request, encoded=b"{}")]
        one = HttpExchange(connection, group, b"x", 30.0, lambda *_: None, lambda _: None)
        headers = {**headers, "content-length": str(len(body))}
        lines = [f"HTTP/1.1 {status} x", *(f"{name}: {value}" for name, value in headers.items())]
        theirs.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        assert one.flush()
        assert one.receive()
        try:
            [outcome] = one.outcomes()
        except Deferred as whole:
            outcome = whole
    assert isinstance(outcome, Deferred)
    return [again.encoded for again in outcome.requests]


@pytest.mark.parametrize("ambiguous", [True, False])
@pytest.mark.parametrize("whole", [True, False], ids=["all of them", "one of them"])
def test_a_deferred_append_remembers_an_ambiguous_response(*, whole: bool, ambiguous: bool) -> None:
    """B10: an ambiguous response is remembered by later attempts of the same append."""
    details = {"ambiguous": ambiguous}
    if whole:
        response = problem_response(503, "backend_failure", **details)
    else:
        response = append_results(refused_part(503, "backend_failure", **details))
    [packed] = asyncio.run(_deferred(response))

    assert packed.maybe_stored is ambiguous
