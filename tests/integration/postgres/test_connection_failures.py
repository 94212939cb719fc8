"""A connection that cannot be made says where, why and what helps, and never a password."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

import seriatim
from seriatim import BackendFailure, NewEvent, Settings
from seriatim.store.postgres import connecting
from seriatim.store.postgres.connection_failures import without_secrets
from seriatim.store.postgres.migrate import migrate
from seriatim.testing.factories import eventually
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
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server with roles, a self-signed certificate and few connections."""
    settings: dict[str, str | int] = {"max_connections": 8, "superuser_reserved_connections": 1}
    with PostgresServer(fsync=False, settings=settings) as one:
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
        owner = one.data_dir.stat()
        for name in ("server.key", "server.crt"):
            target = one.data_dir / name
            target.write_bytes((folder / name).read_bytes())
            os.chown(target, owner.st_uid, owner.st_gid)
            target.chmod(0o600)
        (one.data_dir / "pg_hba.conf").write_text(HBA)
        with psycopg.connect(one.url(), autocommit=True) as connection:
            connection.execute("create role asked login password 'right'")
            connection.execute("create role banned login")
            connection.execute("create role plain login")
            connection.execute("alter system set ssl = on")
            connection.execute("select pg_reload_conf()")
        one.create_database("kept")
        migrate(one.url("kept"))
        yield one


def refusal(url: str) -> BackendFailure:
    """Return why a log cannot be opened."""
    with pytest.raises(BackendFailure) as caught:
        seriatim.open(url, settings=QUICK)
    return caught.value


def at(server: PostgresServer, user: str = "postgres", database: str = "kept", **more: str) -> str:
    """Return a URL that has a password in it."""
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
    "certificate": ({"sslmode": "verify-full"}, None, "sslrootcert", False),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_by_the_server(server: PostgresServer, case: str) -> None:
    """L2, L3: cause, cure, host and port, whether to try again, and never the password."""
    how, state, cure, retryable = CASES[case]
    error = refusal(at(server, **how))

    assert f"127.0.0.1:{server.port}" in error.message
    assert cure in error.message
    assert (error.details["sqlstate"], error.retryable) == (state, retryable)
    assert (error.details["host"], error.details["port"]) == ("127.0.0.1", str(server.port))
    assert_no_secret(error)


def assert_no_secret(error: BackendFailure) -> None:
    """Check that neither form of the password is anywhere in an error, its causes included."""
    seen: BaseException | None = error
    while seen is not None:
        for text in (str(seen), repr(seen), repr(getattr(seen, "details", ""))):
            assert SECRET not in text
            assert WRITTEN not in text
            assert "hunter2" not in text
        seen = seen.__cause__ or seen.__context__


def test_nothing_listens() -> None:
    """L2: a refused connection names host and port, and may be tried again."""
    port = free_port()
    error = refusal(f"postgresql://u:{WRITTEN}@127.0.0.1:{port}/x")

    assert f"127.0.0.1:{port}" in error.message
    assert "no server listens there" in error.message
    assert error.retryable
    assert_no_secret(error)


def test_unknown_host() -> None:
    """L2: a name that cannot be resolved is called so."""
    error = refusal(f"postgresql://u:{WRITTEN}@no-such-host.invalid/x")

    assert "no-such-host.invalid:5432" in error.message
    assert "cannot be resolved" in error.message
    assert_no_secret(error)


def test_a_server_that_says_nothing() -> None:
    """L2: one that accepts and never answers is given up in time, and called out of reach."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        error = refusal(f"postgresql://u:{WRITTEN}@127.0.0.1:{port}/x")

    assert f"127.0.0.1:{port}" in error.message
    assert "connect_timeout_s" in error.message
    assert error.retryable
    assert_no_secret(error)


def test_no_connection_left(server: PostgresServer) -> None:
    """L2: a full server is called so, and may be tried again."""
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
    """L3: a role without grants learns which schema lacks them, and the command that helps."""
    error = refusal(at(server, user="plain"))

    assert "seriatim" in error.message
    assert "schema" in error.message
    assert "--app-role" in error.message
    assert (error.details["sqlstate"], error.retryable) == ("42501", False)
    assert_no_secret(error)


def test_an_old_server_is_named(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: the version that is needed and the one that is there, before any statement."""
    monkeypatch.setattr(connecting, "OLDEST_SERVER", 990000)
    error = refusal(at(server))

    assert "Postgres 99 or newer" in error.message
    assert f"127.0.0.1:{server.port}" in error.message
    assert not error.retryable


def test_reads_say_why_no_connection_can_be_had(server: PostgresServer) -> None:
    """L2: the pool's failure is the connection's own, with host, port and cure."""
    name = "renamed"
    server.create_database(name)
    migrate(server.url(name))
    with seriatim.open(server.url(name), settings=QUICK) as log:
        log.append([NewEvent("x", {})])
        server.drop_database(name)
        error = eventually(lambda: failure_of(log))

    assert error.details["sqlstate"] == "3D000"
    assert f"127.0.0.1:{server.port}" in error.message


def failure_of(log: seriatim.Log) -> BackendFailure | None:
    """Return why the log cannot be read, once a new connection was needed for it."""
    try:
        log.head()
    except BackendFailure as error:
        return error if "host" in error.details else None
    return None


def test_secrets_are_hidden_in_any_text() -> None:
    """L2: passwords, options and password files are hidden, in either way of writing."""
    conninfo = f"host=h password='{SECRET}' passfile=/etc/secret options='-c a.b=topsecret'"
    text = without_secrets(f"said {SECRET} {WRITTEN} /etc/secret -c a.b=topsecret", conninfo)

    assert text == "said *** *** *** ***"


@pytest.mark.parametrize("kind", ["folder", "text", "read-only"])
def test_a_file_that_is_no_log(tmp_path: Path, kind: str) -> None:
    """L2: a SQLite file that cannot be used is named with its cause and its cure."""
    file = tmp_path / "log.db"
    cure = "cannot be opened"
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
