"""Points at which a task kills its own process once, such as after a claim.

An object that is sent to a task arms the process that unpickles it. Only the first crash of a
handler happens: a flag file records it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seriatim.core.handler import Handler
from seriatim.delivery.registry import Registry

POINTS = ["after claim", "before effect", "after effect", "before mark"]

_armed: dict[str, tuple[str, Path]] = {}


def crash_at(point: str, handler: str) -> None:
    """Kill this process if it is armed for this point."""
    armed_point, flag = _armed.get(handler, ("", Path()))
    if armed_point != point or flag.exists():
        return
    flag.touch()
    os.kill(os.getpid(), signal.SIGKILL)


class CrashPlan:
    """Arms every process that unpickles it."""

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
        """Return a handler function that crashes before or after its effect."""

        def doomed(event: Any, context: Any) -> None:
            name = self._state[0]
            crash_at("before effect", name)
            run(event, context)
            crash_at("after effect", name)

        return doomed


_patched = False


def _patch() -> None:
    global _patched  # noqa: PLW0603 - once per process
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
            crash_at("after claim", handler.name)
        return found

    def done(self: Any, handler: Handler, claims: Any) -> None:
        crash_at("before mark", handler.name)
        mark_done(self, handler, claims)

    def done_in(self: Any, session: Any, handler: Handler, claims: Any) -> None:
        crash_at("before mark", handler.name)
        mark_done_in(self, session, handler, claims)

    Registry.claim_all = claimed  # type: ignore[method-assign,assignment]
    Registry.mark_done = done  # type: ignore[method-assign]
    Registry.mark_done_in = done_in  # type: ignore[method-assign]
