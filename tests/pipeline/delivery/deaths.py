"""Where a task kills its own process, once: after a claim, around an effect, before a mark.

What is sent to a task arms its process when it arrives there. Only the first death of a handler
happens: a file tells that it has.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seriatim.core.handling import Handler
from seriatim.delivery.registry import Registry

POINTS = ["after claim", "before effect", "after effect", "before mark"]

_armed: dict[str, tuple[str, Path]] = {}


def die_at(point: str, handler: str) -> None:
    """End this process as if by power cut, if it is to die here."""
    wanted, flag = _armed.get(handler, ("", Path()))
    if wanted != point or flag.exists():
        return
    flag.touch()
    os.kill(os.getpid(), signal.SIGKILL)


class Doom:
    """Arms every process that it comes to."""

    def __init__(self, handler: str, point: str, flag: Path) -> None:
        self._state = (handler, point, flag)

    def __getstate__(self) -> tuple[str, str, Path]:
        return self._state

    def __setstate__(self, state: tuple[str, str, Path]) -> None:
        self._state = state
        handler, point, flag = state
        _armed[handler] = (point, flag)
        _patch()

    def around(self, run: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """Return a handler's function that dies before or after its effect."""

        def doomed(event: Any, context: Any) -> None:
            name = self._state[0]
            die_at("before effect", name)
            run(event, context)
            die_at("after effect", name)

        return doomed


_patched = False


def _patch() -> None:
    global _patched  # noqa: PLW0603 - once a process
    if _patched:
        return
    _patched = True
    claim_all, mark_done, mark_done_in = (
        Registry.claim_all,
        Registry.mark_done,
        Registry.mark_done_in,
    )

    def claimed(self: Any, handler: Handler, *rest: Any) -> Any:
        found = claim_all(self, handler, *rest)
        if any(one.claimed for one in found):
            die_at("after claim", handler.name)
        return found

    def done(self: Any, handler: Handler, claims: Any) -> None:
        die_at("before mark", handler.name)
        mark_done(self, handler, claims)

    def done_in(self: Any, session: Any, handler: Handler, claims: Any) -> None:
        die_at("before mark", handler.name)
        mark_done_in(self, session, handler, claims)

    Registry.claim_all = claimed  # type: ignore[method-assign,assignment]
    Registry.mark_done = done  # type: ignore[method-assign]
    Registry.mark_done_in = done_in  # type: ignore[method-assign]
