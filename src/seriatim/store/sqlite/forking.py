"""Forks: SQLite's locks do not survive one, so every connection is closed before it.

A child inherits what SQLite believes about its locks, but not the locks. Even a new connection to
the same file would share that belief in the child, so none may be open when the process forks.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
from typing import Protocol
from weakref import WeakSet

PATIENCE_S = 5.0


class Pausable(Protocol):
    """What holds connections."""

    def pause(self, seconds: float) -> bool:
        """Close every connection and open none until `resume`; False if some stayed in use."""

    def resume(self) -> None:
        """End a pause."""

    def after_fork(self) -> None:
        """Begin anew in a child process."""


_holders: WeakSet[Pausable] = WeakSet()
_paused: list[Pausable] = []
_turn = threading.Lock()


def watch(holder: Pausable) -> None:
    """Pause a holder around every fork from now on."""
    _holders.add(holder)


def _before() -> None:
    _turn.acquire()  # two threads may fork at once
    _paused.extend(holder for holder in list(_holders) if holder.pause(PATIENCE_S))


def _after_in_parent() -> None:
    while _paused:
        _paused.pop().resume()
    _turn.release()


def _after_in_child() -> None:
    global _turn  # noqa: PLW0603 - the parent's other threads may wait for the old one
    _turn = threading.Lock()
    _paused.clear()
    for holder in list(_holders):
        holder.after_fork()


def abandon(connection: sqlite3.Connection | None) -> None:
    """Leave a connection of the parent alone for ever.

    Closing it in the child would harm the parent, and the end of the interpreter would close it;
    a reference that nobody gives back prevents that.
    """
    if connection is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
