"""How an awaited act runs what would hold its event loop up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class InThread(Protocol):
    """Runs something in a thread, as `asyncio.to_thread` does; it may bound how much there is."""

    def __call__(self, act: Callable[..., T], /, *args: Any, **kwargs: Any) -> Awaitable[T]:
        """Return what the act returns."""
        ...
