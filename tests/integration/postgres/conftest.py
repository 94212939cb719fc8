"""Fixtures of the Postgres tests: roles, and rows inserted with plain SQL."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

import seriatim
from seriatim import EventType, StreamKind
from seriatim.core.ids import stream_key
from seriatim.store.postgres.migrate import grant
from tests.fixtures.pgbouncer import Pgbouncer
from tests.fixtures.postgres_server import PostgresServer

_roles = itertools.count(1)

Insert = Callable[..., None]


def as_role(url: str, role: str) -> str:
    """Return the URL with another role."""
    return url.replace("//postgres@", f"//{role}@")


def role_of(url: str) -> str:
    """Return the role in a URL."""
    return urlsplit(url).username or ""


@pytest.fixture(scope="module")
def bouncer(postgres_server: PostgresServer) -> Iterator[Pgbouncer]:
    """A pooler in transaction mode for the server of the test run, with few connections."""
    with Pgbouncer(postgres_server.url(), pool_size=4) as started:
        yield started


@pytest.fixture
def make_role(postgres_server: PostgresServer) -> Iterator[Callable[..., str]]:
    """Return a function that creates login roles, which are dropped after the test."""
    made: list[str] = []

    def make(**settings: str) -> str:
        name = f"role_{next(_roles)}"
        with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("create role {} login").format(sql.Identifier(name)))
            for setting, value in settings.items():
                text = sql.SQL("alter role {} set {} = {}")
                connection.execute(
                    text.format(sql.Identifier(name), sql.Identifier(setting), sql.Literal(value))
                )
        made.append(name)
        return name

    yield make
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        databases = connection.execute("select datname from pg_database where datallowconn")
        names = [row[0] for row in databases.fetchall()]
    for database in names:
        with psycopg.connect(postgres_server.url(database), autocommit=True) as connection:
            for name in made:
                connection.execute(sql.SQL("drop owned by {} cascade").format(sql.Identifier(name)))
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        for name in made:
            connection.execute(
                sql.SQL("reassign owned by {} to postgres").format(sql.Identifier(name))
            )
            connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.fixture
def app_url(postgres_url: str, make_role: Callable[..., str]) -> str:
    """The URL of the log under an application role with the privileges of `grant`."""
    role = make_role()
    grant(postgres_url, role)
    return as_role(postgres_url, role)


def declare_orders(log: seriatim.Log) -> None:
    """Declare orders, which have an opening type, a closing type and a closed catalogue."""
    log.declare(
        StreamKind(
            name="order",
            opening_type="order.opened",
            closing_types=("order.closed",),
            catalogue="closed",
        ),
        EventType(event_type="order.opened", kind="order"),
        EventType(event_type="order.changed", kind="order"),
        EventType(event_type="order.closed", kind="order"),
    )


def insert_by_hand(
    connection: psycopg.Connection[Any],
    position: int,
    *,
    stream: tuple[str, str] | None = None,
    seq: int | None = None,
    event_type: str = "hand.made",
    **columns: object,
) -> None:
    """Insert an event with plain SQL; columns that are not given are valid."""
    values: dict[str, Any] = {
        "position": position,
        "append_position": position,
        "recorded_us": 1,
        "event_version": 1,
        "payload_hash": bytes(32),
        "tenant_id": "default",
        "event_type": event_type,
        "payload": "{}",
    }
    if stream is not None:
        values |= {
            "stream_key": stream_key("default", *stream).hex(),
            "stream_type": stream[0],
            "stream_id": stream[1],
            "stream_seq": seq,
        }
    values |= columns
    if "event_key" not in values:
        values["event_key"] = connection.execute("select gen_random_uuid()").fetchone()[0]  # type: ignore[index]
    text = sql.SQL("insert into seriatim.events ({}) values ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(sql.Placeholder() * len(values)),
    )
    connection.execute(text, list(values.values()))
