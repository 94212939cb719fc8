"""A service started by a page, which runs in the background until the page ends."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

PORT = "8420"  # the port on the pages; each run uses a free one instead
SERVE = "seriatim serve"
_SAID = "serving "
_PATIENCE_S = 60.0
_ENDS = (0, 130, -signal.SIGTERM)  # stopped on request


def free_port() -> str:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class PageService:
    """The service of one page; starting another one replaces it."""

    def __init__(self, folder: Path, port: str) -> None:
        self._folder = folder
        self._port = port
        self._running: subprocess.Popen[bytes] | None = None

    def start(self, command: str, environment: Mapping[str, str]) -> str:
        """Start a service, wait until it listens, and return its output so far."""
        self.stop()
        output = self._folder / ".serving"
        if "--port" not in command:
            command = command.replace(SERVE, f"{SERVE} --port {self._port}", 1)
        with output.open("wb") as said:
            self._running = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._folder,
                env=environment,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until = time.monotonic() + _PATIENCE_S
        while _SAID not in (text := output.read_text("utf-8")) or not self._listens():
            assert self._running.poll() is None, f"it ended: $ {command}\n{text}"
            assert time.monotonic() < until, f"it never serves: $ {command}\n{text}"
            time.sleep(0.05)
        return text

    def _listens(self) -> bool:
        """Return whether the service accepts connections, which follows its message."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(self._port))) == 0

    def stop(self) -> None:
        """Stop the service with a signal, and check its exit code."""
        if self._running is None:
            return
        running, self._running = self._running, None
        running.send_signal(signal.SIGTERM)
        try:
            code = running.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            raise
        assert code in _ENDS, f"the service ended with {code}"
