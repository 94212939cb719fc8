"""Errors of failed connections name the address, the cause and the remedy, never a password."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

import seriatim
from seriatim import BackendFailure, InvalidArgument, NewEvent, Settings
from seriatim.factory import open_registry
from seriatim.pipeline.scan.database import open_connection, parse_database_url
from seriatim.store.postgres import connection
from seriatim.store.postgres.connection_failures import redact_secrets
from seriatim.store.postgres.migrate import migrate
from seriatim.testing.factories import wait_for
from tests.fixtures.postgres_server import PostgresServer
from tests.fixtures.processes import free_port

SECRET = "hunter2 %/&?"
WRITTEN = quote(SECRET, safe="")
QUICK = Settings(connect_timeout_s=2)

HBA = """
local all postgres trust
host all postgres 127.0.0.1/32 trust
host all asked 127.0.0.1/32 scram-sha-256
host all banned 127.0.0.1/32 reject
host all plain 127.0.0.1/32 trust
host all ghost 127.0.0.1/32 trust
host all barred 127.0.0.1/32 trust
host all limited 127.0.0.1/32 trust
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server with roles, a self-signed certificate and few connections."""
    settings: dict[str, str | int] = {"max_connections": 8, "superuser_reserved_connections": 1}
    with PostgresServer(fsync=False, settings=settings) as server:
        folder = tmp_path_factory.mktemp("tls")
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-keyout", folder / "server.key", "-out", folder / "server.crt"),
                *("-subj", "/CN=elsewhere.example"),
            ],
            check=True,
            capture_output=True,
        )
        owner = server.data_dir.stat()
        for name in ("server.key", "server.crt"):
            target = server.data_dir / name
            target.write_bytes((folder / name).read_bytes())
            os.chown(target, owner.st_uid, owner.st_gid)
            target.chmod(0o600)
        (server.data_dir / "pg_hba.conf").write_text(HBA)
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("create role asked login password 'right'")
            connection.execute("create role banned login")
            connection.execute("create role plain login")
            connection.execute("create role barred")
            connection.execute("create role limited login connection limit 0")
            connection.execute("create database shut allow_connections false")
            connection.execute("create database private")
            connection.execute("revoke connect on database private from public")
            connection.execute("alter system set ssl = on")
            connection.execute("select pg_reload_conf()")
        server.create_database("kept")
        migrate(server.url("kept"))
        yield server


def refusal(url: str) -> BackendFailure:
    """Return the error of opening a log."""
    with pytest.raises(BackendFailure) as caught:
        seriatim.open(url, settings=QUICK)
    return caught.value


def at(server: PostgresServer, user: str = "postgres", database: str = "kept", **more: str) -> str:
    """Return a URL that contains a password."""
    options = "&".join(f"{name}={value}" for name, value in more.items())
    return (
        f"postgresql://{user}:{WRITTEN}@127.0.0.1:{server.port}/{database}"
        f"{'?' if options else ''}{options}"
    )


CASES = {
    "database": ({"database": "absent"}, "3D000", "createdb", False),
    "role": ({"user": "ghost"}, "28000", "createuser", False),
    "no entry": ({"user": "nobody_here"}, "28000", "pg_hba.conf", False),
    "password": ({"user": "asked"}, "28P01", "PGPASSWORD", False),
    "rejected": ({"user": "banned"}, "28000", "pg_hba.conf", False),
    "role that may not log in": ({"user": "barred"}, "28000", "allow the role to log in", False),
    "role with a limit": ({"user": "limited"}, "53300", "connection limit of the role", True),
    "closed database": ({"database": "shut"}, "55000", "ALLOW_CONNECTIONS", False),
    "no right on the database": (
        {"user": "plain", "database": "private"},
        "42501",
        "GRANT CONNECT",
        False,
    ),
    "sslmode": ({"sslmode": "banana"}, None, "correct it in the URL", False),
    "setting": ({"options": "-cbogus=1"}, None, "correct it in the URL", False),
    "certificate": ({"sslmode": "verify-full"}, None, "sslrootcert", False),
}


WRONG_URLS = {
    "slash": "postgresql://u:hunter2/x@127.0.0.1:1/d",
    "number and slash": "postgresql://u:12/hunter2@127.0.0.1:1/d",
    "at sign": "postgresql://u:x@hunter2@127.0.0.1:1/d",
    "question mark": "postgresql://u:12?hunter2@127.0.0.1:1/d",
    "question mark and option": "postgresql://u:12?hunter2=x@127.0.0.1:1/d",
    "percent sign": "postgresql://u:hunter2%zz@127.0.0.1:1/d",
    "space": "postgresql://u:hunter2 x@127.0.0.1:1/d",
    "port": "postgresql://u:x@127.0.0.1:hunter2/d",
    "large port": "postgresql://u:hunter2@127.0.0.1:99999/d",
}


@pytest.mark.parametrize("case", WRONG_URLS)
@pytest.mark.parametrize("opened", [seriatim.open, open_registry, parse_database_url])
def test_a_password_that_is_not_encoded(opened: Callable[[str], object], case: str) -> None:
    """L2, K1: a URL whose password is not percent-encoded is refused without any part of it."""
    with pytest.raises(InvalidArgument) as caught:
        opened(WRONG_URLS[case])

    assert "%" in caught.value.message
    assert_no_secret(caught.value)


def test_passwords_that_need_no_encoding(server: PostgresServer) -> None:
    """F9: brackets and number signs in a password, and a URL without a host, are accepted."""
    for password in ("[hunter2", "#hunter2", "a]b"):
        url = f"postgresql://postgres:{password}@127.0.0.1:{server.port}/kept"
        seriatim.open(url, settings=QUICK).close()
        open_registry(url).close()
    url = f"postgresql:///kept?host=127.0.0.1&port={server.port}&user=postgres"
    seriatim.open(url, settings=QUICK).close()
    open_registry(url).close()


def test_an_unknown_option_is_named() -> None:
    """L3: a misspelt option of the URL is named."""
    with pytest.raises(InvalidArgument, match="unknown option, 'sslmod'"):
        seriatim.open(f"postgresql://u:{WRITTEN}@127.0.0.1:1/d?sslmod=require")


def test_spark_job_reports_the_same_error(server: PostgresServer) -> None:
    """L2: connection errors of ADBC have host, port, reason and remedy."""
    port = free_port()
    for url, state, cure in (
        (f"postgresql://u:{WRITTEN}@127.0.0.1:{port}/x", None, "no server is listening there"),
        (at(server, database="absent"), "3D000", "createdb"),
        (at(server, user="asked"), "28P01", "PGPASSWORD"),
    ):
        with (
            pytest.raises(BackendFailure) as caught,
            open_connection(parse_database_url(url), "reading"),
        ):
            pass
        assert f"127.0.0.1:{port if state is None else server.port}" in caught.value.message
        assert cure in caught.value.message
        assert caught.value.details["sqlstate"] == state
        assert_no_secret(caught.value)


def test_a_schema_without_the_right_to_create_it(server: PostgresServer) -> None:
    """L3: the error names the missing schema and the GRANT that allows to create it."""
    error = refusal(at(server, user="plain", schema="billing"))

    assert "billing" in error.message
    assert "GRANT CREATE ON DATABASE" in error.message
    assert (error.details["sqlstate"], error.retryable) == ("42501", False)


@pytest.mark.parametrize("case", CASES)
def test_refused_by_the_server(server: PostgresServer, case: str) -> None:
    """L2, L3: the error has cause, remedy, host, port and retryable, and no password."""
    how, state, cure, retryable = CASES[case]
    error = refusal(at(server, **how))

    assert f"127.0.0.1:{server.port}" in error.message
    assert cure in error.message
    assert (error.details["sqlstate"], error.retryable) == (state, retryable)
    assert (error.details["host"], error.details["port"]) == ("127.0.0.1", str(server.port))
    assert_no_secret(error)


def assert_no_secret(error: seriatim.SeriatimError) -> None:
    """Check that an error and its causes contain no form of the password."""
    seen: BaseException | None = error
    while seen is not None:
        for text in (str(seen), repr(seen), repr(getattr(seen, "details", ""))):
            assert SECRET not in text
            assert WRITTEN not in text
            assert "hunter2" not in text
        seen = seen.__cause__ or seen.__context__


def test_a_closed_port() -> None:
    """L2: a refused connection names host and port, and is retryable."""
    port = free_port()
    error = refusal(f"postgresql://u:{WRITTEN}@127.0.0.1:{port}/x")

    assert f"127.0.0.1:{port}" in error.message
    assert "no server is listening there" in error.message
    assert error.retryable
    assert_no_secret(error)


def test_server_that_closes_the_connection() -> None:
    """L2: the error of a connection that the server closes at once names a likely cause."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        hanging_up = threading.Thread(target=_hang_up, args=(server,), daemon=True)
        hanging_up.start()
        error = refusal(f"postgresql://u:{WRITTEN}@127.0.0.1:{port}/x")

    assert f"127.0.0.1:{port}" in error.message
    assert "check that it is a Postgres server" in error.message
    assert error.retryable
    assert_no_secret(error)


def _hang_up(server: socket.socket) -> None:
    while True:
        try:
            server.accept()[0].close()
        except OSError:
            return


def test_an_unknown_host() -> None:
    """L2: the error says that the host name cannot be resolved."""
    error = refusal(f"postgresql://u:{WRITTEN}@no-such-host.invalid/x")

    assert "no-such-host.invalid:5432" in error.message
    assert "cannot be resolved" in error.message
    assert_no_secret(error)


def test_unresponsive_server_times_out() -> None:
    """L2: a server that accepts and does not respond is given up after connect_timeout_s."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        error = refusal(f"postgresql://u:{WRITTEN}@127.0.0.1:{port}/x")

    assert f"127.0.0.1:{port}" in error.message
    assert "connect_timeout_s" in error.message
    assert error.retryable
    assert_no_secret(error)


def test_a_server_without_free_connections(server: PostgresServer) -> None:
    """L2: the error of a full server names max_connections, and is retryable."""
    with ExitStack() as held:

        def take_all() -> None:
            for _ in range(20):
                held.enter_context(psycopg.connect(at(server, user="plain")))

        with pytest.raises(psycopg.OperationalError):
            take_all()
        error = refusal(at(server, user="plain"))

    assert error.details["sqlstate"] == "53300"
    assert "max_connections" in error.message
    assert error.retryable
    assert_no_secret(error)


def test_a_missing_grant_names_its_schema(server: PostgresServer) -> None:
    """L3: the error of a role without grants names the schema and the command that grants."""
    error = refusal(at(server, user="plain"))

    assert "seriatim" in error.message
    assert "schema" in error.message
    assert "--app-role" in error.message
    assert (error.details["sqlstate"], error.retryable) == ("42501", False)
    assert_no_secret(error)


def test_an_old_server_is_refused(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: a server of an old version is refused with the version that is needed."""
    monkeypatch.setattr(connection, "MIN_SERVER_VERSION", 990000)
    error = refusal(at(server))

    assert "Postgres 99 or newer" in error.message
    assert f"127.0.0.1:{server.port}" in error.message
    assert not error.retryable


def test_reads_report_the_error_of_their_connection(server: PostgresServer) -> None:
    """L2: a read without a connection reports the connection's own error."""
    name = "renamed"
    server.create_database(name)
    migrate(server.url(name))
    with seriatim.open(server.url(name), settings=QUICK) as log:
        log.append([NewEvent("x", {})])
        server.drop_database(name)
        error = wait_for(lambda: failure_of(log))

    assert error.details["sqlstate"] == "3D000"
    assert f"127.0.0.1:{server.port}" in error.message


def failure_of(log: seriatim.Log) -> BackendFailure | None:
    """Return the connection error of a read, or None while a pooled connection works."""
    try:
        log.head()
    except BackendFailure as error:
        return error if "host" in error.details else None
    return None


def test_secrets_are_hidden_in_any_text() -> None:
    """L2: passwords, options and password files are redacted, encoded or not."""
    conninfo = f"host=h password='{SECRET}' passfile=/etc/secret options='-c a.b=topsecret'"
    text = redact_secrets(f"said {SECRET} {WRITTEN} /etc/secret -c a.b=topsecret", conninfo)

    assert text == "said *** *** *** ***"


@pytest.mark.parametrize("kind", ["folder", "text", "read-only"])
def test_an_unusable_file(tmp_path: Path, kind: str) -> None:
    """L2: a SQLite file that cannot be used is named with the cause."""
    file = tmp_path / "log.db"
    cure = "cannot open"
    if kind == "folder":
        file.mkdir()
    elif kind == "text":
        file.write_text("nothing of a database " * 100)
        cure = "is not a SQLite database"
    else:
        file = tmp_path / "absent" / "log.db"
        file.parent.write_text("in the way")
    with pytest.raises(BackendFailure) as caught:
        seriatim.open(f"sqlite:///{file}")

    assert str(file) in caught.value.message
    assert cure in caught.value.message
    assert not caught.value.retryable
