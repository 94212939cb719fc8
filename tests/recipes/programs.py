"""The example applications as processes: servers that are called over HTTP, and runners."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil

from fastapi_shop.shop import orders
from seriatim import Log
from tests.fixtures.processes import free_port, kill_tree

EXAMPLES = Path(__file__).parents[2] / "examples"
WAIT_S = 120.0  # a machine may be busy with other tests
WORKERS = 2
# So that the events of a killed process are handled again within seconds.
LEASE = {
    "PROCESSED_EVENT_LEASE_TIMEOUT_SECONDS": "5",
    "PROCESSED_EVENT_HEARTBEAT_INTERVAL_SECONDS": "1",
}
# Uvicorn raises the signal again after it has shut down; a command ends as after Ctrl-C.
ENDS = (0, -signal.SIGTERM, 130)
STOP_S = 60.0  # followers stop within 30 seconds each
CALL_TIMEOUT_S = 20.0
POLL_S = 0.05


class Program:
    """A command of a recipe in its own process, which ends with the test."""

    def __init__(self, command: list[str], folder: Path, **environment: str) -> None:
        # A file and not a pipe: nobody reads while the program runs.
        self._output = tempfile.NamedTemporaryFile(suffix=".out")  # noqa: SIM115 - closed at exit
        self._command = command
        self._process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=os.environ | LEASE | environment | {"PYTHONUNBUFFERED": "1"},
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.kill9()
        if kind is not None:  # pytest shows it with the failed test
            sys.stderr.write(f"-- {' '.join(self._command)}\n{self.output}\n")
        self._output.close()

    @property
    def output(self) -> str:
        """Everything that the program has printed."""
        return Path(self._output.name).read_text("utf-8", errors="replace")

    def wait_for(self, holds: Callable[[], Any], what: str) -> Any:
        """Wait until a condition holds while the program runs, and return its value."""
        deadline = time.monotonic() + WAIT_S
        while not (found := holds()):
            assert self._process.poll() is None, f"it ended before {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {what}:\n{self.output}"
            time.sleep(POLL_S)
        return found

    def wait_printed(self, text: str) -> None:
        """Wait until the program has printed a text."""
        self.wait_for(lambda: text in self.output, f"output of {text!r}")

    def kill9(self) -> None:
        """Kill the program and its workers; safe to call twice."""
        kill_tree(self._process)
        self._process.wait(WAIT_S)

    def stop(self) -> int:
        """Stop the program with SIGTERM, check that it ends in time, and return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_S)
        assert code in ENDS, f"it ended with {code}:\n{self.output}"
        assert "Traceback" not in self.output, self.output
        return code


def is_worker(process: psutil.Process) -> bool:
    """Return whether a child is a worker of a server and not a helper of multiprocessing."""
    try:
        command = " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
    return bool(command) and "resource_tracker" not in command


class WebServer(Program):
    """A web server with an example application."""

    def __init__(self, command: list[str], folder: Path, port: int, **environment: str) -> None:
        super().__init__(command, folder, **environment)
        self.port = port

    def wait_listening(self) -> Self:
        """Wait until the server responds."""
        self.wait_for(lambda: self.try_call("GET", "/health"), "response")
        return self

    def kill_oldest_worker(self) -> None:
        """Kill the worker process that has run longest, and wait for its end."""
        oldest, _ = self.wait_for(
            lambda: len(found := self._find_workers()) == WORKERS and found, "two workers"
        )
        oldest.kill()
        self.wait_for(lambda: oldest not in self._find_workers(), "end of a killed worker")

    def _find_workers(self) -> list[psutil.Process]:
        """Return the worker processes of the server, the oldest first."""
        children = psutil.Process(self.pid).children()
        return sorted(filter(is_worker, children), key=psutil.Process.create_time)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request on a new connection; return status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CALL_TIMEOUT_S)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            response = connection.getresponse()
            text = response.read()
            is_json = response.headers.get_content_type() == "application/json"
            return response.status, json.loads(text) if is_json else text.decode()
        finally:
            connection.close()

    def try_call(self, method: str, path: str, body: object = None) -> tuple[int, Any] | None:
        """Return the response, or None if the connection failed, as while a worker dies."""
        try:
            return self.call(method, path, body)
        except (OSError, http.client.HTTPException):
            return None

    def place(self, order_id: str, cents: int = 500) -> int:
        """Place an order as a client does, with retries; return its position."""
        order = {"customer": "Ada", "cents": cents}

        def placed() -> Any:
            response = self.try_call("PUT", f"/orders/{order_id}", order)
            return response and response[0] == 200 and response[1]

        position: int = self.wait_for(placed, f"receipt of order {order_id}")["position"]
        return position

    def wait_confirmed(self, order_id: str) -> None:
        """Wait until the handler has confirmed an order, and the read model contains it."""
        self.wait_for(
            lambda: self.read_own_write(order_id, 0)["status"] == "confirmed",
            f"confirmation of order {order_id}",
        )

    def read_own_write(self, order_id: str, position: int) -> Any:
        """Read an order once the read model has reached its position, with retries."""

        def found() -> Any:
            response = self.try_call("GET", f"/orders/{order_id}?after={position}")
            return response and response[0] == 200 and response[1]

        return self.wait_for(found, f"row of order {order_id}")


def check_orders(log: Log, *order_ids: str) -> None:
    """Check that each order was stored and confirmed once, and that the rows are right."""
    for event_type in ("order.placed", "order.confirmed"):
        found = [event.stream_id for event in log.read(types=[event_type])]
        assert sorted(map(str, found)) == sorted(order_ids), event_type
    log.projections.run(orders)
    proof = log.projections.verify(orders)
    assert (proof.equal, proof.rows) == (True, len(order_ids))


def serve_fastapi(url: str, *options: str) -> WebServer:
    """Start the FastAPI shop on uvicorn."""
    port = free_port()
    command = ["-m", "uvicorn", "fastapi_shop.app:app", "--port", str(port), *options]
    return WebServer(command, EXAMPLES, port, SHOP_LOG=url)


def serve_django(url: str, *options: str) -> WebServer:
    """Start the Django shop on gunicorn."""
    port = free_port()
    command = ["-m", "gunicorn", "--bind", f"127.0.0.1:{port}", *options, "shop.wsgi"]
    return WebServer(command, EXAMPLES / "django_shop", port, SHOP_LOG=url)


def run_django_runner(url: str) -> Program:
    """Start the process that follows the log for the Django shop."""
    return Program(["manage.py", "runseriatim"], EXAMPLES / "django_shop", SHOP_LOG=url)
