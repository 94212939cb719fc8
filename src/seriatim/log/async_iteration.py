"""Asynchronous iteration over blocking iterators, each in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, ParamSpec, Protocol, TypeVar

from seriatim.core.errors import SeriatimError

P = ParamSpec("P")
T = TypeVar("T")
_END: Any = object()


async def iterate_in_own_thread(
    iterator: Iterator[T], stop: Callable[[], None]
) -> AsyncGenerator[T, None]:
    """Iterate over an iterator that may block for long, such as a tail.

    It blocks neither the event loop nor the loop's worker threads. A cancelled consumer returns at
    once. A consumer that leaves otherwise waits until the iterator has released its resources.

    Args:
        iterator: The blocking iterator.
        stop: Called to make a blocked step of the iterator return.
    """
    thread = ThreadPoolExecutor(1, "seriatim-following")
    try:
        while (item := await _step(thread, iterator)) is not _END:
            yield item
    except asyncio.CancelledError:
        _close_in_thread(thread, iterator, stop)
        raise
    except BaseException:
        # Shielded: a cancellation ends the wait, but not the release of a lease in the thread.
        await asyncio.shield(asyncio.wrap_future(_close_in_thread(thread, iterator, stop)))
        raise
    thread.shutdown(wait=False)


async def _step(thread: ThreadPoolExecutor, iterator: Iterator[T]) -> T:
    context = copy_context()  # so that spans made in the thread join the caller's trace
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(thread, lambda: context.run(_next, iterator))


def _next(iterator: Iterator[T]) -> T:
    return next(iterator, _END)


def _close_in_thread(
    thread: ThreadPoolExecutor, iterator: Iterator[Any], stop: Callable[[], None]
) -> Future[None]:
    """Stop the iterator and close it in its thread, after the current step has returned."""
    stop()
    closed = thread.submit(_close, iterator)
    thread.shutdown(wait=False)
    return closed


def _close(iterator: Iterator[Any]) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        with suppress(SeriatimError):  # a lease that cannot be released expires
            close()


class AsyncExecutor(Protocol):
    """Run a blocking call in a thread, like `asyncio.to_thread`; it may limit concurrency."""

    def __call__(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Return an awaitable of the function's result."""
        ...
