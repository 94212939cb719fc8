"""The interface by which asyncio code runs blocking calls in threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class AsyncExecutor(Protocol):
    """Run a blocking call in a thread, like `asyncio.to_thread`; it may limit concurrency."""

    def __call__(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Awaitable[T]:
        """Return an awaitable of the function's result."""
        ...
