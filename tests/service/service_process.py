"""`seriatim serve` in a separate process that can be terminated and killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any

from seriatim.access.rights import RIGHTS
from seriatim.factory import access_url, open_access
from tests.fixtures.processes import kill_tree
from tests.service.http_calls import Caller

START_S = 60.0
_AT = re.compile(r"at (https?://\S+:(\d+))")
# Files of this process grow no larger: writing beyond fails as on a full disk.
_CONFINED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
from seriatim.cli import main
main()
"""


def _program(limit_bytes: int | None, script: str | None) -> list[str]:
    if script is not None:
        return [sys.executable, "-c", script]
    if limit_bytes is None:
        return [sys.executable, "-m", "seriatim"]
    return [sys.executable, "-c", _CONFINED, str(limit_bytes)]


class ServiceProcess:
    """A service in a separate process."""

    def __init__(
        self,
        url: str,
        *args: str,
        limit_bytes: int | None = None,
        script: str | None = None,
        access: str | None = None,
    ) -> None:
        self.url = url
        self.access = access or access_url(url)
        self.text: list[str] = []
        self._at: Future[re.Match[str]] = Future()
        self.process = subprocess.Popen(
            [*_program(limit_bytes, script), "serve", "--url", url, "--port", "0", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "COLUMNS": "500", "NO_COLOR": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        found = self._at.result(START_S)
        self.at, self.port = found[1], int(found[2])

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.text.append(line.decode())
            if not self._at.done() and (found := _AT.search(self.text[-1])):
                self._at.set_result(found)
        if not self._at.done():
            self._at.set_exception(RuntimeError("".join(self.text)))

    def caller(self, **token: Any) -> Caller:
        """Return a client with a new token, after the service has started."""
        made = {"subject": "tester", "tenant_id": "*", "rights": RIGHTS} | token
        with closing(open_access(self.access)) as access:
            text, _ = access.create(**made)
        return Caller(self.port, text)

    def terminate(self, timeout_s: float = 40.0) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill9(self) -> None:
        """Kill the service and all its processes."""
        kill_tree(self.process)

    def close(self) -> None:
        """Kill remaining processes and close the streams."""
        self.kill9()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def run_service_process(url: str, *args: str, **more: Any) -> Iterator[ServiceProcess]:
    """Run `seriatim serve` during the `with` block."""
    one = ServiceProcess(url, *args, **more)
    try:
        yield one
    finally:
        one.close()
