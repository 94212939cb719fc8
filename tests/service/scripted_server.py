"""An HTTP server with scripted responses, to simulate faults of a service."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

ScriptedResponse = tuple[int, dict[str, str], bytes]

JSON = {"content-type": "application/json"}
PROBLEM = {"content-type": "application/problem+json"}
LOST: ScriptedResponse = (0, {}, b"")  # the connection ends without a response
INFO = b'{"log_id":"%s","epoch":1,"head":0,"tenant_id":"t","version":"1"}' % (b"0" * 8,)


class ScriptedHandler(http.server.BaseHTTPRequestHandler):
    """Sends the scripted responses in order; the last one is repeated."""

    replies: ClassVar[list[ScriptedResponse]] = []
    requests: ClassVar[list[tuple[float, bytes]]] = []
    request_headers: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        """Send the next response."""
        size = int(self.headers.get("content-length", 0))
        type(self).requests.append((time.monotonic(), self.rfile.read(size)))
        type(self).request_headers.append(dict(self.headers))
        replies = type(self).replies
        status, headers, body = replies.pop(0) if len(replies) > 1 else replies[0]
        if (status, headers, body) == LOST:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the name it is called by

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def run_scripted_server() -> Iterator[tuple[str, type[ScriptedHandler]]]:
    """Run a server with scripted responses during the `with` block."""

    class Handler(ScriptedHandler):
        replies: ClassVar[list[ScriptedResponse]] = []
        requests: ClassVar[list[tuple[float, bytes]]] = []
        request_headers: ClassVar[list[dict[str, str]]] = []

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", Handler
        finally:
            server.shutdown()
            thread.join()


def problem_body(status: int, code: str, *, retryable: bool = True, **details: object) -> bytes:
    """Return the body of a problem."""
    return json.dumps(
        {
            "type": f"urn:seriatim:problem:{code}",
            "title": "x",
            "status": status,
            "code": code,
            "detail": "no",
            "details": details,
            "retryable": retryable,
        }
    ).encode()


def problem_response(status: int, code: str, **more: Any) -> ScriptedResponse:
    """Return a response with a problem."""
    return status, PROBLEM, problem_body(status, code, **more)


def append_results(*parts: Any) -> ScriptedResponse:
    """Return a response to several appends, with a receipt or problem for each."""
    return 200, JSON, json.dumps({"outcomes": list(parts)}).encode()


def refused_part(status: int, code: str, **more: Any) -> dict[str, Any]:
    """Return the problem of one append of several."""
    return {"problem": json.loads(problem_body(status, code, **more))}


def accepted_part(position: int = 1) -> dict[str, Any]:
    """Return the receipt of one append of several."""
    placed = {"position": position, "event_id": f"e-{position}", "stream_seq": None}
    return {
        "receipt": {
            "first_position": position,
            "last_position": position,
            "recorded_at": "2025-01-01T00:00:00.000000Z",
            "events": [placed],
        }
    }
