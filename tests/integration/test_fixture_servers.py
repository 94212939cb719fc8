"""Tests of the servers and the proxy that other tests use."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.fixtures.postgres_server import PostgresServer
from tests.fixtures.proxy import TcpProxy

StartServer = Callable[..., PostgresServer]
StartProxy = Callable[[str], TcpProxy]


def read_rows(url: str) -> list[int]:
    """Read the table ``t`` over a separate connection."""
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT n FROM t ORDER BY n")]


@pytest.fixture
def table_url(empty_postgres_url: str) -> str:
    """The URL of a database with one table ``t`` that contains the number 1."""
    with psycopg.connect(empty_postgres_url) as connection:
        connection.execute("CREATE TABLE t (n int)")
        connection.execute("INSERT INTO t VALUES (1)")
    return empty_postgres_url


def insert_two(connection: psycopg.Connection) -> None:
    """Insert the number 2 and commit."""
    connection.execute("INSERT INTO t VALUES (2)")
    connection.commit()


def test_server_listens_on_tcp_and_socket(postgres_server: PostgresServer) -> None:
    """Both URLs lead to the same server, with the settings of the fixture."""
    found = []
    for url in (postgres_server.url(), postgres_server.url(via_socket=True)):
        with psycopg.connect(url) as connection:
            names = "SELECT current_setting(s) FROM unnest(%s::text[]) s"
            wanted = ["fsync", "max_connections", "wal_level", "port"]
            found.append([row[0] for row in connection.execute(names, [wanted])])

    assert found == [["off", "200", "replica", str(postgres_server.port)]] * 2


def test_server_does_not_run_as_root(postgres_server: PostgresServer) -> None:
    """An unprivileged user owns the data directory."""
    assert postgres_server.data_dir.stat().st_uid != 0
    assert postgres_server.data_dir.stat().st_mode & 0o077 == 0


def test_each_test_has_a_separate_clone(
    postgres_server: PostgresServer, postgres_template: str, postgres_url: str
) -> None:
    """A clone is writable, independent of others, and created in less than two seconds."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE only_here (n int)")
    started_at = time.monotonic()
    other_url = postgres_server.create_database("sibling", postgres_template)
    took_s = time.monotonic() - started_at
    with psycopg.connect(other_url) as connection:
        found = connection.execute("SELECT to_regclass('only_here')").fetchone()
    postgres_server.drop_database("sibling")

    assert found == (None,)
    assert took_s < 2.0


def test_tools_run_against_the_server(postgres_server: PostgresServer, table_url: str) -> None:
    """Client tools connect to the server without connection settings."""
    dump = postgres_server.run_tool("pg_dump", "--data-only", table_url.rsplit("/", 1)[1])

    assert "COPY public.t (n)" in dump.stdout


def test_failed_tool_raises(postgres_server: PostgresServer) -> None:
    """A failing tool raises an error with its output."""
    with pytest.raises(RuntimeError, match="no_such_database"):
        postgres_server.run_tool("pg_dump", "no_such_database")


def test_committed_data_survives_kill9(own_postgres: StartServer) -> None:
    """After SIGKILL a restarted server has exactly the committed data."""
    server = own_postgres()
    with psycopg.connect(server.url()) as connection:
        connection.execute("CREATE TABLE t (n int)")
        connection.execute("INSERT INTO t VALUES (1)")
    open_transaction = psycopg.connect(server.url())
    open_transaction.execute("INSERT INTO t VALUES (2)")
    pid = server.pid

    server.kill9()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(psycopg.OperationalError):
        open_transaction.execute("SELECT 1")
    open_transaction.close()
    server.start()
    assert read_rows(server.url()) == [1]


def test_base_backup_starts_as_a_second_server(own_postgres: StartServer) -> None:
    """A server can start on a base backup of another."""
    first = own_postgres(fsync=False)
    with psycopg.connect(first.url()) as connection:
        connection.execute("CREATE TABLE t (n int)")
        connection.execute("INSERT INTO t VALUES (7)")
    first.run_tool("pg_basebackup", "-D", first.home / "backup", "--checkpoint=fast")

    second = own_postgres(data_from=first.home / "backup")

    assert read_rows(second.url()) == [7]
    assert first.port != second.port


def test_closed_server_is_removed(own_postgres: StartServer) -> None:
    """Closing a server ends its process and removes its directory."""
    server = own_postgres(fsync=False)
    pid, home = server.pid, server.home

    server.close()

    assert not home.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_server_ends_with_a_killed_test_run() -> None:
    """When the test process is killed, its server ends and its directory is removed."""
    script = (
        "from tests.fixtures.postgres_server import PostgresServer; import os, sys, signal;"
        "s = PostgresServer(fsync=False); s.start(); print(s.pid, s.home, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    owner = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    pid, home = owner.stdout.split()

    deadline = time.monotonic() + 30
    while Path(home).exists() and time.monotonic() < deadline:
        time.sleep(0.05)

    assert not Path(home).exists()
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == "zombie"


def test_restart_keeps_the_url(own_postgres: StartServer) -> None:
    """A restarted server has the same URL and settings."""
    server = own_postgres(settings={"work_mem": "7MB"})
    url = server.url()

    server.restart()

    with psycopg.connect(url) as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)


def test_proxy_forwards_everything_without_a_fault(proxy_to: StartProxy, table_url: str) -> None:
    """Without a fault the proxy forwards everything, also large messages."""
    proxy = proxy_to(table_url)
    with psycopg.connect(proxy.url) as connection:
        found = connection.execute("SELECT %s::text", ["x" * 1_000_000]).fetchone()

    assert found == ("x" * 1_000_000,)
    assert proxy.connections_seen == 1


def test_request_lost_before_commit(proxy_to: StartProxy, table_url: str) -> None:
    """A dropped COMMIT request commits nothing."""
    proxy = proxy_to(table_url)
    connection = psycopg.connect(proxy.url)
    fault = proxy.drop_requests_with(b"COMMIT")

    with pytest.raises(psycopg.OperationalError):
        insert_two(connection)

    fault.wait()
    assert read_rows(table_url) == [1]
    connection.close()


def test_reply_lost_after_commit(proxy_to: StartProxy, table_url: str) -> None:
    """A COMMIT whose response is dropped is committed, and the client gets an error."""
    proxy = proxy_to(table_url)
    connection = psycopg.connect(proxy.url)
    fault = proxy.drop_replies_after(b"COMMIT")

    with pytest.raises(psycopg.OperationalError):
        insert_two(connection)

    assert fault.triggered.is_set()
    assert read_rows(table_url) == [1, 2]
    connection.close()


def test_reply_lost_after_large_request(proxy_to: StartProxy, table_url: str) -> None:
    """A request of many chunks with an early marker reaches the server as a whole."""
    proxy = proxy_to(table_url)
    connection = psycopg.connect(proxy.url, autocommit=True)
    proxy.drop_replies_after(b"early-marker")
    argument = "early-marker" + "x" * 1_000_000

    with pytest.raises(psycopg.OperationalError):
        connection.execute("INSERT INTO t SELECT length(%s)", [argument])

    assert read_rows(table_url) == [1, len(argument)]
    connection.close()


def test_fault_happens_once(proxy_to: StartProxy, table_url: str) -> None:
    """After a planned loss a new connection works."""
    proxy = proxy_to(table_url)
    proxy.drop_requests_with(b"COMMIT")
    for _ in range(2):
        connection = psycopg.connect(proxy.url)
        try:
            insert_two(connection)
        except psycopg.OperationalError:
            continue
        finally:
            connection.close()

    assert read_rows(table_url) == [1, 2]


def test_cut_closes_and_refuses_until_resume(proxy_to: StartProxy, table_url: str) -> None:
    """A cut closes open connections, and with `refuse` new ones fail until resume."""
    proxy = proxy_to(table_url)
    connection = psycopg.connect(proxy.url)

    proxy.cut(refuse=True)

    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(proxy.url)
    connection.close()
    proxy.resume()
    assert read_rows(proxy.url) == [1]


def test_pause_holds_bytes_until_resume(proxy_to: StartProxy, table_url: str) -> None:
    """A paused proxy forwards nothing until resume, and keeps connections open."""
    proxy = proxy_to(table_url)
    with (
        psycopg.connect(proxy.url, autocommit=True) as connection,
        ThreadPoolExecutor(1) as threads,
    ):
        proxy.pause()
        insert = threads.submit(connection.execute, "INSERT INTO t VALUES (3)")
        time.sleep(0.2)
        held = read_rows(table_url)
        done_while_paused = insert.done()
        proxy.resume()
        insert.result(timeout=10)

    assert held == [1]
    assert not done_while_paused
    assert read_rows(table_url) == [1, 3]
