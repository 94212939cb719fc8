"""A search index on loopback with external document versions."""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import quote, unquote


class IndexServer:
    """An HTTP server that refuses versions not higher than the stored one."""

    def __init__(self) -> None:
        self.documents: dict[str, tuple[int, Any]] = {}
        self.writes: list[tuple[str, int]] = []
        lock = threading.Lock()
        outer = self

        class Target(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                key = unquote(self.path[1:])
                version = int(self.headers["Version"])
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    newer = version > outer.documents.get(key, (-1, None))[0]
                    if newer:
                        outer.documents[key] = (version, body)
                        outer.writes.append((key, version))
                self.send_response(200 if newer else 409)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log no requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Target)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        """The port of the server."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class HttpIndex:
    """A client of the index server."""

    def __init__(self, port: int) -> None:
        self._port = port

    def put(self, key: str, version: int, document: Any) -> None:
        """Store a document unless a newer version exists."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
        headers = {"Version": str(version)}
        connection.request("PUT", f"/{quote(key, safe='')}", json.dumps(document), headers)
        assert connection.getresponse().status in (200, 409)
        connection.close()
