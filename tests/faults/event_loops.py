"""Helpers for tests of appends on an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

import seriatim
from seriatim import NewEvent
from tests.fixtures.proxy import TcpProxy


def make_event(name: str, **options: Any) -> list[NewEvent]:
    """Return an append of one event with an id, so that a repeated append finds it."""
    return [NewEvent("placed", {"name": name}, event_id=name, **options)]


async def gather_outcomes(*appends: Awaitable[Any]) -> list[Any]:
    """Await all appends and return their results or errors."""
    return list(await asyncio.gather(*appends, return_exceptions=True))


async def close_during_appends(log: seriatim.Log, proxy: TcpProxy, where: str) -> list[Any]:
    """Close a log with blocked appends, inside or outside of its loop; return the outcomes."""
    proxy.pause()
    appends = [asyncio.create_task(log.aio.append(make_event(f"e-{n}"))) for n in range(12)]
    await asyncio.sleep(0.1)
    threading.Timer(0.2, proxy.resume).start()
    if where == "inside":
        log.close()
    else:
        await asyncio.to_thread(log.close)
    return await gather_outcomes(*appends)
