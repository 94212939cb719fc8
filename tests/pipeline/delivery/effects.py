"""Handlers whose effects can be counted, wherever their tasks run."""

from __future__ import annotations

import json
import os
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from seriatim.core.handler import Handler, RetryPolicy, handler

QUICK = RetryPolicy(attempts=3, base_s=0.05, cap_s=0.1)


def _made(name: str, run: Any, parts: dict[str, Any]) -> Handler:
    given: dict[str, Any] = {"retry": QUICK} | parts
    return handler(name, **given)(run)


def make_transactional_handler(name: str = "ledger", **parts: object) -> Handler:
    """Return a handler that writes a row in the transaction of the registry."""

    def write(event: Any, context: Any) -> None:
        values = (event.event_id, event.stream_id, event.stream_seq, os.getpid())
        mark = "?" if hasattr(context.connection, "executescript") else "%s"
        marks = ", ".join([mark] * len(values))
        context.connection.execute(f"insert into effects values ({marks})", values)

    return _made(name, write, {"effect": "transactional"} | parts)


def make_posting_handler(url: str, name: str = "poster", **parts: object) -> Handler:
    """Return a handler that posts to an HTTP server with an idempotency key."""

    def post(event: Any, context: Any) -> None:
        body = json.dumps(
            {"event": event.event_id, "stream": event.stream_id, "seq": event.stream_seq}
        )
        server = urlsplit(url)
        connection = HTTPConnection(server.hostname or "", server.port, timeout=30)
        connection.request("POST", "/", body, {"Idempotency-Key": context.key})
        assert connection.getresponse().status == 200
        connection.close()

    return _made(name, post, {"effect": "keyed"} | parts)


def make_noting_handler(folder: Path, name: str = "noter", **parts: object) -> Handler:
    """Return a handler that appends a line to a file; it fails for events in `poison`."""

    def note(event: Any, _context: Any) -> None:
        poison = folder / "poison"
        if poison.exists() and event.event_id in poison.read_text().split():
            raise ValueError("poison")
        line = f"{event.event_id} {event.stream_id} {event.stream_seq}\n".encode()
        handle = os.open(folder / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, line)
        os.close(handle)

    return _made(name, note, {"effect": "keyed"} | parts)


def read_notes(folder: Path) -> list[tuple[str, str, str]]:
    """Return the written lines in order."""
    file = folder / "notes"
    if not file.exists():
        return []
    return [tuple(line.split(" ")) for line in file.read_text().splitlines()]  # type: ignore[misc]
