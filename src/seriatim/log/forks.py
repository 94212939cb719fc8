"""The open logs of a process, which a forked child gives connections and threads of their own."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog

OPEN_LOGS: weakref.WeakSet[BaseLog] = weakref.WeakSet()


def _after_fork() -> None:
    """Give a forked child process its own committers and connections."""
    for log in OPEN_LOGS:
        log.appender.after_fork()
        log.store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
