"""A PgBouncer with transaction pooling, if the machine has one or can install it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import psycopg
import pytest

from tests.fixtures.postgres_binaries import find_account
from tests.fixtures.postgres_server import PostgresServer

INSTALL = ["apt-get", "install", "-y", "--no-install-recommends", "pgbouncer"]
START_S = 20.0

CONFIG = """
[databases]
* = host=127.0.0.1 port={server_port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
logfile = {home}/pgbouncer.log
pidfile = {home}/pgbouncer.pid
"""


def find_pgbouncer() -> str:
    """Return the path of PgBouncer; install it if possible, otherwise skip the test."""
    if found := _found():
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(INSTALL, check=False, capture_output=True, timeout=180)
        if found := _found():
            return found
    pytest.skip("NOT TESTED behind a pooler: no pgbouncer here (apt-get install pgbouncer)")


def _found() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


class PgbouncerServer:
    """A PgBouncer process on loopback."""

    def __init__(self, program: str, server: PostgresServer) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="srtm-b-", dir="/tmp"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        config = self._home / "pgbouncer.ini"
        config.write_text(CONFIG.format(server_port=server.port, port=self.port, home=self._home))
        account = find_account()
        for path in (self._home, config):
            os.chown(path, account.uid, account.gid)
        self._process = subprocess.Popen(
            [program, config],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            **account.popen_options(),
        )

    def __enter__(self) -> Self:
        deadline = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.Error:
                assert self._process.poll() is None, "pgbouncer ended"
                assert time.monotonic() < deadline, "pgbouncer did not start"
                time.sleep(0.05)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        shutil.rmtree(self._home, ignore_errors=True)

    def url(self, database: str) -> str:
        """Return the URL of a database through the pooler."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"
