"""Wake-ups by LISTEN: a hint that saves waiting, on a session of its own; lost, it costs a poll."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import psycopg

from seriatim.core.errors import SeriatimError
from seriatim.store.postgres.connecting import Connection
from seriatim.store.postgres.statements import channel

_CHECK_S = 0.5
_RETRY_S = 1.0


class Listener:
    """One thread that listens for all who wait in this process; it starts with the first."""

    def __init__(self, connect: Callable[[], Connection], schema: str) -> None:
        self._connect = connect
        self._channel = channel(schema)
        self._start_fresh()

    def _start_fresh(self) -> None:
        self._heard = threading.Condition()
        self._count = 0
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def mark(self) -> int:
        """Return a mark to wait from, and make sure that somebody listens."""
        with self._heard:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="seriatim-listener", daemon=True
                )
                self._thread.start()
            return self._count

    def wait(self, mark: int, timeout: float) -> None:
        """Wait for a hint after the mark."""
        with self._heard:
            self._heard.wait_for(lambda: self._count != mark or self._closed.is_set(), timeout)

    def hint(self) -> None:
        """Wake everybody who waits."""
        with self._heard:
            self._count += 1
            self._heard.notify_all()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with closing(self._connect()) as connection:
                    connection.execute(f'listen "{self._channel}"')
                    self.hint()  # what was announced before this moment was not heard
                    self._listen(connection)
            except (psycopg.Error, SeriatimError):
                self._closed.wait(_RETRY_S)

    def _listen(self, connection: Connection) -> None:
        while not self._closed.is_set():
            for _ in connection.notifies(timeout=_CHECK_S, stop_after=1):
                self.hint()

    def after_fork(self) -> None:
        """Begin anew in a child process."""
        self._start_fresh()

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self.hint()
        if self._thread is not None:
            self._thread.join(timeout=5)
