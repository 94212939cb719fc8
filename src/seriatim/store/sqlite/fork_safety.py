"""Close all SQLite connections before a fork, because file locks do not survive it.

A child inherits SQLite's in-memory state of its locks, but not the locks themselves. Even a new
connection in the child would share that state, so no connection may be open when the process forks.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
from typing import Protocol
from weakref import WeakSet

PAUSE_TIMEOUT_S = 5.0  # then the fork proceeds, and the connection stays open in the parent


class Pausable(Protocol):
    """An object that holds connections."""

    def pause(self, seconds: float) -> bool:
        """Close all connections until `resume`; return False if one stayed in use."""

    def resume(self) -> None:
        """End a pause."""

    def after_fork(self) -> None:
        """Reset the state in a forked child."""


_holders: WeakSet[Pausable] = WeakSet()
_paused: list[Pausable] = []
_fork_lock = threading.Lock()


def register_holder(holder: Pausable) -> None:
    """Pause a holder of connections around every fork from now on."""
    _holders.add(holder)


def _pause_all() -> None:
    # Held until the fork is over: of two threads that fork at once, one would resume the holders
    # while the other has not forked yet.
    _fork_lock.acquire()
    _paused.extend(holder for holder in list(_holders) if holder.pause(PAUSE_TIMEOUT_S))


def _resume_all() -> None:
    while _paused:
        _paused.pop().resume()
    _fork_lock.release()


def _reset_child() -> None:
    global _fork_lock  # noqa: PLW0603 - a thread of the parent may hold the old one
    _fork_lock = threading.Lock()
    _paused.clear()
    for holder in list(_holders):
        holder.after_fork()


def abandon_connection(connection: sqlite3.Connection | None) -> None:
    """Keep a connection of the parent open in a forked child, without using it.

    Closing it in the child would harm the parent, and the interpreter would close it at exit. An
    extra reference that is never released prevents that.
    """
    if connection is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_pause_all, after_in_parent=_resume_all, after_in_child=_reset_child)
