"""An append whose answer was lost and whose service is gone since: it is reported as ambiguous."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import seriatim
from seriatim import BackendFailure, Settings
from seriatim.client.store import HttpStore
from tests.faults.loops import event, outcomes
from tests.fixtures.proxy import TcpProxy
from tests.fixtures.service import Running
from tests.service.test_client_lane import APPENDS, stored, warm_up


def leave_one_connection(log: seriatim.Log) -> None:
    """Close all idle connections but one, and let new ones meet a port that nobody listens on."""
    used = cast("HttpStore", log.store).http._connections
    while len(used._idle) > 1:
        used._idle.pop().close()
    with socket.create_server(("127.0.0.1", 0)) as unused:
        used._port = unused.getsockname()[1]


def test_an_unanswered_append_of_a_loop_stays_ambiguous(quick: Running) -> None:
    """B10: further tries that reach nobody do not show that nothing was stored."""

    async def act() -> tuple[list[Any], list[Any]]:
        settings = Settings(timeout_s=2.0, connect_timeout_s=1.0)
        token = quick.token(tenant_id="unanswered")
        with seriatim.open(proxy.url, token=token, settings=settings) as log:
            await warm_up(log)
            leave_one_connection(log)
            lost = proxy.drop_replies_after(APPENDS, ends=b"")
            found = await outcomes(log.aio.append(event("sent"), timeout=60))
            lost.wait()
            return found, await outcomes(log.aio.append(event("never sent"), timeout=60))

    with TcpProxy(quick.url) as proxy:
        [sent], [never] = asyncio.run(act())

    assert stored(quick, "unanswered") == ["sent"]  # which the caller cannot know
    assert (type(sent), sent.ambiguous) == (BackendFailure, True)
    assert (type(never), never.ambiguous) == (BackendFailure, False)
