"""An HTTP server that counts effects, with or without idempotency keys."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class CountingServer:
    """A server on loopback; `keyed` makes it apply each idempotency key once."""

    def __init__(self, *, keyed: bool) -> None:
        self.effects: list[dict[str, Any]] = []
        self.requests = 0
        keys: set[str] = set()
        lock = threading.Lock()
        outer = self

        class Target(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                key = self.headers["Idempotency-Key"]
                with lock:
                    outer.requests += 1
                    if not keyed or key not in keys:
                        keys.add(key)
                        outer.effects.append(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log no requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Target)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    @property
    def counts(self) -> Counter[str]:
        """The number of effects of each event."""
        return Counter(effect["event"] for effect in self.effects)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
