"""Wake-ups by LISTEN on a separate connection; a lost notification only costs one poll interval."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import psycopg

from seriatim.core.errors import SeriatimError
from seriatim.store.postgres.connection import Connection
from seriatim.store.postgres.statements import get_channel_name

_CHECK_S = 0.5
_RETRY_S = 1.0


class Listener:
    """One thread that listens on behalf of all waiting threads; the first wait starts it."""

    def __init__(self, connect: Callable[[], Connection], schema: str) -> None:
        self._connect = connect
        self._channel = get_channel_name(schema)
        self._reset()

    def _reset(self) -> None:
        self._notified = threading.Condition()
        self._count = 0
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def begin_wait(self) -> int:
        """Return the current notification count to pass to `wait`; start the thread if needed."""
        with self._notified:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="seriatim-listener", daemon=True
                )
                self._thread.start()
            return self._count

    def wait(self, count: int, timeout: float) -> None:
        """Block until a notification arrives after `count`, at most `timeout` seconds."""
        with self._notified:
            self._notified.wait_for(lambda: self._count != count or self._closed.is_set(), timeout)

    def notify(self) -> None:
        """Wake all waiting threads."""
        with self._notified:
            self._count += 1
            self._notified.notify_all()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with closing(self._connect()) as connection:
                    connection.execute(f'listen "{self._channel}"')
                    self.notify()  # notifications before LISTEN were missed
                    self._listen(connection)
            except (psycopg.Error, SeriatimError):
                self._closed.wait(_RETRY_S)

    def _listen(self, connection: Connection) -> None:
        while not self._closed.is_set():
            for _ in connection.notifies(timeout=_CHECK_S, stop_after=1):
                self.notify()

    def after_fork(self) -> None:
        """Reset the state in a forked child; the thread exists only in the parent."""
        self._reset()

    def close(self) -> None:
        """Stop the thread and wake all waiting threads."""
        self._closed.set()
        self.notify()
        if self._thread is not None:
            self._thread.join(timeout=5)
