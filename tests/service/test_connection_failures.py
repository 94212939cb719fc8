"""Errors of an unreachable service or database name the address, the cause and the remedy."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import seriatim
from seriatim import BackendFailure, Settings
from seriatim.factory import redact_url
from tests.fixtures.postgres_server import PostgresServer
from tests.fixtures.processes import free_port
from tests.fixtures.service import run_service
from tests.service.http_calls import Caller
from tests.service.service_process import run_service_process

QUICK = Settings(timeout_s=1.0, connect_timeout_s=1.0)
TOKEN = "srt_0000_a-secret-of-a-token"


def refusal(url: str, settings: Settings = QUICK, **options: str) -> BackendFailure:
    """Return the error of opening a log in a service."""
    with pytest.raises(BackendFailure) as caught:
        seriatim.open(url, token=TOKEN, settings=settings, **options)  # type: ignore[arg-type]
    assert TOKEN not in str(caught.value)
    return caught.value


def test_a_closed_port() -> None:
    """L2: the error names host and port and the command that starts a service."""
    port = free_port()
    error = refusal(f"http://127.0.0.1:{port}")

    assert f"127.0.0.1:{port}" in error.message
    assert "seriatim serve" in error.message
    assert error.retryable


def test_an_unknown_host() -> None:
    """L2: the error says that the host name cannot be resolved."""
    error = refusal("http://no-such-host.invalid:8420")

    assert "no-such-host.invalid:8420" in error.message
    assert "cannot be resolved" in error.message


def test_an_untrusted_certificate(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    """L2: the error names the `verify=` option, and is not retried."""
    cert, key = certificate
    url = f"sqlite:///{tmp_path}/log.db"
    with run_service_process(url, "--certificate", str(cert), "--key", str(key)) as service:
        at = f"https://127.0.0.1:{service.port}"
        error = refusal(at, Settings(timeout_s=600))
        token = service.caller().token
        with seriatim.open(at, token=token, verify=str(cert)) as log:
            assert log.head() == 0

    assert f"127.0.0.1:{service.port}" in error.message
    assert "certificate" in error.message
    assert "verify=" in error.message
    assert not error.retryable


def test_https_to_a_plain_port(tmp_path: Path) -> None:
    """L2: the error of https:// at a plain port suggests http://, and is not retried."""
    with run_service(f"sqlite:///{tmp_path}/log.db") as service:
        at = f"127.0.0.1:{service.port}"
        error = refusal(f"https://{at}", Settings(timeout_s=600))

    assert at in error.message
    assert "http://" in error.message
    assert not error.retryable


def test_a_port_in_use(tmp_path: Path) -> None:
    """L3: `seriatim serve` names the occupied address and the `--port` option."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "seriatim", "serve", "--port", str(port)]
        done = subprocess.run(
            [*command, "--url", f"sqlite:///{tmp_path}/log.db"],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "COLUMNS": "500", "NO_COLOR": "1"},
        )

    assert done.returncode != 0
    assert f"127.0.0.1:{port}" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_responses_do_not_reveal_the_address_of_the_database(
    own_postgres: Callable[..., PostgresServer],
) -> None:
    """L2, K2: without its database a service answers 503, without host or port."""
    server = own_postgres(fsync=False)
    with run_service(server.url()) as service:
        caller = Caller(service.port, service.token())
        assert caller("GET", "/v1/log").status == 200
        server.stop(immediate=True)
        response = caller("GET", "/v1/events")

    assert response.status == 503
    assert str(server.port) not in response.body.decode()
    assert "127.0.0.1" not in response.body.decode()


def test_redacted_urls_contain_no_secrets() -> None:
    """L2: passwords and key files are removed from a redacted URL."""
    shown = redact_url("postgresql://u:p%40ss@h:1/d?password=abc&passfile=/x&sslkey=y&schema=s")

    assert "p%40ss" not in shown
    assert "abc" not in shown
    assert "/x" not in shown
    assert "schema=s" in shown
