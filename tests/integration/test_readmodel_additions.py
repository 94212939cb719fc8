"""A switch preserves users' additions to the tables of a read model, or refuses (I4)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from seriatim.core.errors import Conflict
from seriatim.core.projection import projection
from seriatim.store.readmodel.model import ReadModel
from tests.integration.readmodel_support import (
    LOG,
    begin_and_claim,
    keep_state,
    make_step,
    seat_rows,
    seats,
    short_rows,
)

wider = projection("seats", key="stream_id", columns={"given": int}, version=2)(keep_state)


def switch_to_shadow(model: ReadModel, made: Any = seats) -> None:
    """Replace the live tables by a shadow."""
    model.drop(made, shadow=True)
    model.create_projection(made, "default", LOG, shadow=True)
    token = model.claim("seats", "rebuild", 60, shadow=True)
    assert token is not None
    live = model.progress("seats")
    model.commit(made, make_step(0, live.position if live else 1), token=token, shadow=True)
    assert model.switch(made)


@pytest.fixture
def filled(model: ReadModel) -> ReadModel:
    """A read model with one row."""
    model.commit(
        seats, make_step(0, 1, state_rows=seat_rows({"1a": 1}, 1)), token=begin_and_claim(model)
    )
    return model


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_sqlite_keeps_indexes_triggers_and_views(filled: ReadModel, place: str) -> None:
    """I4: on SQLite a switch keeps indexes, triggers and views of users."""
    path = place.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as file:
        file.execute("create index by_taken on seats (taken)")
        file.execute("create view shown as select stream_id from seats")
        file.execute("create table touched (n integer)")
        file.execute(
            "create trigger touch after insert on seats begin insert into touched values (1); end"
        )
        file.commit()
        for _ in range(2):
            switch_to_shadow(filled)
            named = file.execute("select name from sqlite_master where tbl_name = 'seats'")
            assert {"by_taken", "touch"} <= {row[0] for row in named}
            assert file.execute("select * from shown").fetchall() == []
    assert Path(path).exists()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_an_index_on_a_removed_column_blocks_the_switch(filled: ReadModel, place: str) -> None:
    """I4: an index on a column that the new declaration lacks blocks the switch, by name."""
    with closing(sqlite3.connect(place.removeprefix("sqlite:///"))) as file:
        file.execute("create index by_taken on seats (taken)")
        file.commit()
    with pytest.raises(Conflict, match="by_taken"):
        switch_to_shadow(filled, wider)
    assert short_rows(filled) == {"1a": 1}


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_postgres_keeps_grants_indexes_and_comments(filled: ReadModel, place: str) -> None:
    """I4: on Postgres a switch keeps grants, indexes and comments."""
    with psycopg.connect(place.partition("?")[0], autocommit=True) as server:
        server.execute("drop role if exists additions_reader")
        server.execute("create role additions_reader")
        try:
            server.execute("grant select, update on read.seats to additions_reader")
            server.execute("grant insert (taken) on read.seats to additions_reader")
            server.execute("grant select on read.seats to public")
            server.execute("create unique index by_taken on read.seats (taken) where taken > 100")
            server.execute("comment on table read.seats is 'the show''s seats'")
            server.execute("comment on column read.seats.taken is '100 % taken'")
            before = read_additions(server)
            for _ in range(2):
                switch_to_shadow(filled)
                assert read_additions(server) == before
        finally:
            server.execute("drop owned by additions_reader")
            server.execute("drop role additions_reader")


def read_additions(server: psycopg.Connection[Any]) -> dict[str, Any]:
    """Return grants, indexes and comments of the table."""

    def one(sql: str) -> list[Any]:
        return sorted(map(str, server.execute(sql.encode()).fetchall()))

    return {
        "table": one("select relacl from pg_class where oid = 'read.seats'::regclass"),
        "columns": one(
            "select attname, attacl from pg_attribute where attrelid = 'read.seats'::regclass "
            "and attacl is not null"
        ),
        "indexes": one(
            "select indexdef from pg_indexes where schemaname = 'read' and tablename = 'seats' "
            "and indexname = 'by_taken'"
        ),
        "comment": one("select obj_description('read.seats'::regclass)"),
        "column comment": one("select col_description('read.seats'::regclass, 3)"),
    }


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    ("added", "what"),
    [
        ("create view read.shown as select stream_id from read.seats", "view read.shown"),
        ("alter table read.seats add constraint few check (taken < 100)", "constraint few"),
        ("create policy mine on read.seats using (true)", "policy mine"),
        ("create publication shows for table read.seats", "publication shows"),
        ("create rule noted as on delete to read.seats do also select 1", "rule noted"),
        ("create table read.child () inherits (read.seats)", "table read.child"),
        ("create table read.copies (seat read.seats)", "table read.copies"),
        (
            "create function read.many() returns bigint return (select count(*) from read.seats)",
            "function read.many",
        ),
        (
            "create function read.one(read.seats[]) returns int language sql as 'select 1'",
            "function read.one",
        ),
        ("alter table read.seats add column mine text default 'x'", "column mine"),
    ],
)
def test_other_additions_block_the_switch(
    filled: ReadModel, place: str, added: str, what: str
) -> None:
    """I4: an addition that a switch would lose blocks the rebuild and is named."""
    with psycopg.connect(place.partition("?")[0], autocommit=True) as server:
        server.execute(added.encode())
        for act in (filled.check_replaceable, lambda made: switch_to_shadow(filled, made)):
            with pytest.raises(Conflict, match=what):
                act(seats)
        assert short_rows(filled) == {"1a": 1}


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_postgres_keeps_settings_and_statistics(filled: ReadModel, place: str) -> None:
    """I4: a switch keeps row security, storage, identity, statistics and owner."""
    with psycopg.connect(place.partition("?")[0], autocommit=True) as server:
        server.execute("drop role if exists additions_owner")
        server.execute("create role additions_owner")
        server.execute("grant usage, create on schema read to additions_owner")
        for added in (
            "create unique index by_place on read.seats (tenant_id, stream_id)",
            "alter table read.seats enable row level security",
            "alter table read.seats force row level security",
            "alter table read.seats set (fillfactor = 70, autovacuum_enabled = false)",
            "create statistics read.together on stream_id, taken from read.seats",
            "alter table read.seats replica identity using index by_place",
            "alter table read.seats owner to additions_owner",
        ):
            server.execute(added.encode())
        try:
            before = read_settings(server)
            for _ in range(2):
                switch_to_shadow(filled)
                assert read_settings(server) == before
        finally:
            server.execute("alter table read.seats owner to current_user")
            server.execute("drop owned by additions_owner")
            server.execute("drop role additions_owner")


def read_settings(server: psycopg.Connection[Any]) -> list[Any]:
    """Return row security, storage, identity, owner and statistics of the table."""
    found = server.execute(
        "select c.relrowsecurity, c.relforcerowsecurity, c.reloptions, c.relreplident, "
        "pg_get_userbyid(c.relowner), s.stxname from pg_class c "
        "left join pg_statistic_ext s on s.stxrelid = c.oid where c.oid = 'read.seats'::regclass"
    ).fetchall()
    assert found == [
        (
            *(True, True, ["fillfactor=70", "autovacuum_enabled=false"], "i"),
            *("additions_owner", "together"),
        )
    ]
    return found


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_default_privileges_add_no_grants(filled: ReadModel, place: str) -> None:
    """I4, K2: a switch does not grant default privileges that the live table lacks."""
    with psycopg.connect(place.partition("?")[0], autocommit=True) as server:
        server.execute("alter default privileges in schema read grant select on tables to public")
        shown = "select relacl::text from pg_class where oid = 'read.seats'::regclass"
        before = server.execute(shown).fetchall()
        switch_to_shadow(filled)
        after = server.execute(shown).fetchall()
        assert "{=r" not in str(after)
        assert ",=r" not in str(after)
        server.execute("grant select on read.seats to public")
        switch_to_shadow(filled)
        assert "=r/" in str(server.execute(shown).fetchall())
    assert "=r/" not in str(before)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_column_of_a_user_blocks_the_rebuild(filled: ReadModel, place: str) -> None:
    """I4: a column that a user added blocks a rebuild and is named."""
    with closing(sqlite3.connect(place.removeprefix("sqlite:///"))) as file:
        file.execute("alter table seats add column mine text")
        file.commit()
    for made in (seats, wider):
        with pytest.raises(Conflict, match="column mine"):
            filled.check_replaceable(made)
    assert short_rows(filled) == {"1a": 1}


def test_a_switch_without_live_tables(model: ReadModel) -> None:
    """I4: a projection without live tables can be switched."""
    model.check_replaceable(seats)
    switch_to_shadow(model)
    newer = msgspec.structs.replace(seats, version=3)
    model.check_replaceable(newer)
    switch_to_shadow(model, newer)
