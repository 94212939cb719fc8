"""Following awaited: each iterator is stepped, and left, in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from seriatim.core.errors import SeriatimError

T = TypeVar("T")
_END: Any = object()


async def followed(iterator: Iterator[T], stop: Callable[[], None]) -> AsyncGenerator[T, None]:
    """Iterate over what waits for long, holding up neither the event loop nor its worker threads.

    Who is cancelled goes at once; who leaves otherwise waits, without the loop, until what the
    iterator held is given back.
    """
    thread = ThreadPoolExecutor(1, "seriatim-following")
    try:
        while (item := await _step(thread, iterator)) is not _END:
            yield item
    except asyncio.CancelledError:
        _leave(thread, iterator, stop)
        raise
    except BaseException:
        await asyncio.shield(asyncio.wrap_future(_leave(thread, iterator, stop)))
        raise
    thread.shutdown(wait=False)


async def _step(thread: ThreadPoolExecutor, iterator: Iterator[T]) -> T:
    known = copy_context()  # which trace it is about
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(thread, lambda: known.run(_next, iterator))


def _next(iterator: Iterator[T]) -> T:
    return next(iterator, _END)


def _leave(
    thread: ThreadPoolExecutor, iterator: Iterator[Any], stop: Callable[[], None]
) -> Future[None]:
    """Stop the iterator, and close it in its thread once the step under way has ended."""
    stop()
    left = thread.submit(_close, iterator)
    thread.shutdown(wait=False)
    return left


def _close(iterator: Iterator[Any]) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        with suppress(SeriatimError):  # a lease that cannot be released runs out by itself
            close()
