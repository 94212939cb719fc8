"""Read models under faults: lost connections, forks, wrong locations, invalid URLs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seriatim
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.factory import (
    find_read_model,
    open_read_model,
    read_model_url,
    sqlite_path,
)
from seriatim.store.readmodel.model import ReadModel
from tests.fixtures.postgres_server import PostgresServer
from tests.integration.readmodel_support import (
    begin_and_claim,
    make_step,
    seat_rows,
    seats,
    short_rows,
)

URL = "postgresql://me:secret@host/db"


# -- lost connections


@pytest.fixture
def server_model(empty_postgres_url: str) -> Iterator[ReadModel]:
    """A read model on Postgres."""
    model = open_read_model(f"{empty_postgres_url}?schema=read")
    yield model
    model.close()


def end_connections(url: str) -> None:
    """End every other connection to a database, and wait until they are closed."""
    others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"select pg_terminate_backend(pid) {others}")
        while connection.execute(f"select pid {others}").fetchall():
            time.sleep(0.01)


def test_lost_connection_is_reopened(server_model: ReadModel, empty_postgres_url: str) -> None:
    """I2: a connection lost between transactions is reopened without an error."""
    token = begin_and_claim(server_model)
    end_connections(empty_postgres_url)
    server_model.commit(seats, make_step(0, 3, state_rows=seat_rows({"1a": 1}, 3)), token=token)
    end_connections(empty_postgres_url)

    assert short_rows(server_model) == {"1a": 1}


def test_connection_lost_in_a_transaction_stores_nothing(
    server_model: ReadModel, empty_postgres_url: str
) -> None:
    """I2: a connection lost in a transaction is a retryable error, and nothing is stored."""
    token = begin_and_claim(server_model)
    batch = make_step(0, 3, state_rows=seat_rows({"1a": 1}, 3))

    def interrupted() -> None:
        with server_model.engine.transaction() as session:
            server_model.write(session, seats, batch, shadow=False)
            end_connections(empty_postgres_url)

    with pytest.raises(BackendFailure) as caught:
        interrupted()
    assert caught.value.retryable
    assert (short_rows(server_model), server_model.list_progress()[0].position) == ({}, 0)
    server_model.commit(seats, batch, token=token)
    assert short_rows(server_model) == {"1a": 1}


def test_unreachable_server_is_reported(own_postgres: Callable[..., PostgresServer]) -> None:
    """L2: an unreachable server is a retryable error, and work continues after its restart."""
    server = own_postgres()
    model = open_read_model(f"{server.create_database('gone')}?schema=read")
    token = begin_and_claim(model)
    server.stop()
    with pytest.raises(BackendFailure) as caught:
        model.list_progress()
    assert caught.value.retryable
    server.start()

    model.commit(seats, make_step(0, 1), token=token)
    assert model.list_progress()[0].position == 1
    model.close()


# -- SQLite's file


def test_a_read_model_in_the_file_of_a_log_is_refused(tmp_path: Path) -> None:
    """F2: a read model in the file of a log is refused."""
    url = f"sqlite:///{tmp_path}/log.db"
    seriatim.open(url).close()

    with pytest.raises(InvalidArgument, match="is a log: use a separate file for the read model"):
        open_read_model(url)
    assert find_read_model(url) is None


def test_removed_file_is_reported(tmp_path: Path) -> None:
    """I2: a commit to a removed file is refused."""
    model = open_read_model(f"sqlite:///{tmp_path}/read.db")
    token = begin_and_claim(model)
    (tmp_path / "read.db").unlink()

    with pytest.raises(BackendFailure, match="was moved, deleted or replaced"):
        model.commit(seats, make_step(0, 1), token=token)
    model.close()
    with pytest.raises(BackendFailure, match="closed"):
        model.list_progress()


def test_a_forked_process_has_its_own_connection(tmp_path: Path) -> None:
    """I2: parent and child of a fork both commit."""
    model = open_read_model(f"sqlite:///{tmp_path}/read.db")
    token = begin_and_claim(model)
    model.commit(seats, make_step(0, 1, state_rows=seat_rows({"1a": 1}, 1)), token=token)
    child = os.fork()
    if child == 0:
        try:
            model.commit(seats, make_step(1, 2, state_rows=seat_rows({"1a": 2}, 2)), token=token)
            os._exit(0 if short_rows(model) == {"1a": 2} else 1)
        except BaseException:  # noqa: BLE001 - the exit status tells the parent
            os._exit(2)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert short_rows(model) == {"1a": 2}
    model.commit(seats, make_step(2, 3, state_rows=seat_rows({"1a": 3}, 3)), token=token)
    assert short_rows(model) == {"1a": 3}
    model.close()


def test_a_fork_during_a_transaction(tmp_path: Path) -> None:
    """I2: a transaction continues in the parent after a fork."""
    model = open_read_model(f"sqlite:///{tmp_path}/read.db")
    begin_and_claim(model)
    with model.engine.transaction() as session:
        model.write(
            session, seats, make_step(0, 1, state_rows=seat_rows({"1a": 1}, 1)), shadow=False
        )
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    assert short_rows(model) == {"1a": 1}
    model.close()


# -- locations


def test_lookup_creates_no_read_model(place: str) -> None:
    """I6: looking for a read model creates neither file nor schema."""
    assert find_read_model(place) is None
    assert find_read_model(place) is None
    if place.startswith("sqlite:"):
        assert not Path(sqlite_path(place)).exists()
    else:
        with psycopg.connect(place.partition("?")[0]) as connection:
            found = connection.execute("select to_regnamespace('read')").fetchone()
        assert found == (None,)
    model = open_read_model(place)
    begin_and_claim(model)
    found_model = find_read_model(place)
    assert found_model is not None
    assert [one.name for one in found_model.list_progress()] == ["seats"]
    found_model.close()
    model.close()


@pytest.mark.parametrize(
    ("url", "tenant", "expected"),
    [
        ("sqlite:///app.db", "default", "sqlite:///app.read.db"),
        ("sqlite:////var/app.db", "acme", "sqlite:////var/app.acme.read.db"),
        ("sqlite:///app.sqlite", "*", "sqlite:///app.sqlite.all.read.db"),
        ("sqlite:///app.db?x=1", "default", "sqlite:///app.read.db"),
        ("sqlite:///app.db#x", "default", "sqlite:///app.read.db"),
        ("sqlite:///a%20b.db", "default", "sqlite:///a%20b.read.db"),
        (URL, "default", f"{URL}?schema=seriatim_read"),
        (URL, "acme_1", f"{URL}?schema=seriatim_read_acme_1"),
        (f"{URL}?schema=Mine", "*", f"{URL}?schema=Mine_read_all"),
        (
            f"{URL}?options=-c%20work_mem%3D1MB&sslmode=disable",
            "default",
            f"{URL}?options=-c%20work_mem%3D1MB&sslmode=disable&schema=seriatim_read",
        ),
    ],
)
def test_default_url_of_a_read_model(url: str, tenant: str, expected: str) -> None:
    """I2: the default URL of a read model is derived from the URL of its log and the tenant."""
    assert read_model_url(url, tenant) == expected


TENANTS = st.one_of(
    st.text(min_size=1, max_size=20),
    st.from_regex(r"[a-z0-9_]{1,18}", fullmatch=True),
    st.sampled_from(["default", "*", "all", "ALL", "t", "_", "a", "A", "a.b", "a/b", "../x"]),
)


@given(st.sets(TENANTS, min_size=2, max_size=5), st.sampled_from(["s", "S", "x" * 41]))
def test_default_urls_of_tenants_do_not_collide(tenants: set[str], schema: str) -> None:
    """K1: default locations of different tenants differ and have valid names."""
    schemas = set()
    for tenant in tenants:
        options = dict(parse_qsl(urlsplit(read_model_url(f"{URL}?schema={schema}", tenant)).query))
        schemas.add(options["schema"].lower())
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,40}", options["schema"])
    paths = {sqlite_path(read_model_url("sqlite:///d/app.db", tenant)) for tenant in tenants}

    assert len(schemas) == len(paths) == len(tenants)
    assert all(re.fullmatch(r"d/app(\.[a-z0-9_]+)?\.read\.db", path) for path in paths)


def test_long_schema_names_do_not_collide() -> None:
    """K1: default locations of long schema names with a common prefix differ."""
    made = {read_model_url(f"{URL}?schema={'x' * 40}{end}", t) for end in "ab" for t in ("a", "b")}

    assert len(made) == 4


def test_the_longest_schema_name_is_usable(empty_postgres_url: str) -> None:
    """K1: the read model of a log with the longest schema name can be opened."""
    model = open_read_model(read_model_url(f"{empty_postgres_url}?schema={'x' * 41}", "Ünï"))
    begin_and_claim(model)

    assert [one.name for one in model.list_progress()] == ["seats"]
    model.close()


def test_options_of_a_url_reach_the_server(empty_postgres_url: str) -> None:
    """A space in an option of the URL reaches the server."""
    url = f"{empty_postgres_url}?options=-c%20work_mem%3D7MB"
    model = open_read_model(read_model_url(url))
    with model.engine.transaction() as session:
        assert session.run("show work_mem") == [("7MB",)]
    model.close()
