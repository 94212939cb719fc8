"""Doctor reports problems of a database and their cures (F9)."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

import seriatim
from seriatim import NewEvent
from seriatim.factory import diagnose
from seriatim.store.port import Finding
from seriatim.store.postgres.migrate import SCHEMA_VERSION, grant, migrate
from seriatim.store.postgres.statements import load_postgres_statements
from tests.faults.test_restore import standby_of
from tests.fixtures.postgres_server import PostgresServer
from tests.integration.postgres.conftest import as_role

StartServer = Callable[..., PostgresServer]
MakeRole = Callable[..., str]


def found(url: str, check: str) -> list[Finding]:
    """Return what doctor says about one thing."""
    return [finding for finding in diagnose(url) if finding.check == check]


def test_sound_database_has_no_findings(own_postgres: StartServer) -> None:
    """F9: a durable server with a fresh log has nothing worse than its superuser to report."""
    server = own_postgres()
    url = server.create_database("log")
    migrate(url)

    assert [one.check for one in diagnose(url) if one.level != "ok"] == [
        "grants",
        "row security",
    ]


def test_unsafe_settings_are_named(own_postgres: StartServer) -> None:
    """F9: each unsafe setting is reported with its consequence."""
    server = own_postgres(fsync=False, settings={"full_page_writes": "off", "autovacuum": "off"})
    url = server.create_database("log")
    migrate(url)

    said = {one.message: one.level for one in diagnose(url) if one.check == "settings"}

    assert sorted(said.values()) == ["error", "error", "warning"]
    assert all(
        any(message.startswith(name) for message in said)
        for name in ("fsync", "full_page_writes", "autovacuum")
    )


def test_old_schema_is_named(empty_postgres_url: str) -> None:
    """F9, F3: an old schema, which cannot be opened, can be examined."""
    assert found(empty_postgres_url, "schema")[0].cure == "run seriatim init"
    migrate(empty_postgres_url, target=SCHEMA_VERSION - 1)

    [old] = found(empty_postgres_url, "schema")

    assert (old.level, old.cure) == ("error", "run seriatim init")
    assert f"version {SCHEMA_VERSION - 1}" in old.message


def test_missing_grants_are_named(postgres_url: str, make_role: MakeRole) -> None:
    """F9: a role without read access can run the doctor, which names the cure."""
    [said] = found(as_role(postgres_url, make_role()), "grants")

    assert said.level == "error"
    assert "--app-role" in said.cure


@pytest.mark.parametrize("trigger", ["check_group", "refuse_change"])
def test_disabled_trigger_is_named(postgres_url: str, trigger: str) -> None:
    """F9, F2: a trigger that was switched off, or dropped, is an error."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"alter table seriatim.events disable trigger {trigger}".encode())
    [disabled] = found(postgres_url, "triggers")
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"drop trigger {trigger} on seriatim.events".encode())
    [dropped] = found(postgres_url, "triggers")

    assert (disabled.level, dropped.level) == ("error", "error")
    assert trigger in disabled.message


def test_replica_triggers_are_named(postgres_url: str) -> None:
    """F9, F2: a trigger that fires only on replicas protects nothing here."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute("alter table seriatim.events enable replica trigger refuse_change")

    assert found(postgres_url, "triggers")[0].level == "error"


def test_role_that_bypasses_row_security_is_named(
    postgres_url: str, app_url: str, make_role: MakeRole
) -> None:
    """F9, K2: doctor warns of a role that bypasses row-level security, and names the cure."""
    role = make_role()
    grant(postgres_url, role)
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"alter role {role} bypassrls".encode())
    urls = (postgres_url, as_role(postgres_url, role), app_url)

    [superuser], [bypassing], [plain] = (found(url, "row security") for url in urls)

    assert (superuser.level, bypassing.level, plain.level) == ("warning", "warning", "ok")
    assert role in bypassing.message
    assert "no BYPASSRLS" in bypassing.cure


@pytest.mark.parametrize(
    "change",
    [
        "alter table seriatim.events disable row level security",
        "alter table seriatim.events no force row level security",
        "drop policy one_tenant on seriatim.events",
    ],
)
def test_disabled_row_security_is_named(postgres_url: str, change: str) -> None:
    """F9, K2: row-level security that was switched off is an error, with the table's name."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute(change.encode())

    [said] = found(postgres_url, "row security")

    assert said.level == "error"
    assert said.message.endswith(" events")


def test_long_transaction_is_named(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: an old transaction is reported with its process."""
    checks = load_postgres_statements("checks.sql", "seriatim")
    text = checks["list_long_transactions"].replace("60 seconds", "0.1 seconds")
    monkeypatch.setitem(checks, "list_long_transactions", text)
    with psycopg.connect(postgres_url, application_name="sleeper") as connection:
        connection.execute("select pg_sleep(0.2)")
        [said] = found(postgres_url, "long transaction")
        pid = connection.info.backend_pid

    assert said.level == "warning"
    assert str(pid) in said.message
    assert "sleeper" in said.message


def test_held_lock_is_named(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F9, B14: a process that holds the append lock for long is reported with the cure."""
    checks = load_postgres_statements("checks.sql", "seriatim")
    text = checks["list_lock_holders"].replace("5 seconds", "0.1 seconds")
    monkeypatch.setitem(checks, "list_lock_holders", text)
    with (
        seriatim.open(postgres_url) as log,
        psycopg.connect(postgres_url, application_name="my app") as connection,
    ):
        log.append([NewEvent("held", {})], connection=connection)
        connection.execute("select pg_sleep(0.2)")
        [said] = found(postgres_url, "append lock")
        pid = connection.info.backend_pid

    assert said.level == "error"
    assert "my app" in said.message
    assert str(pid) in said.cure


def test_standby_is_named(own_postgres: StartServer) -> None:
    """F9, F6: a standby can be examined, and is called one."""
    primary = own_postgres(fsync=False)
    url = primary.create_database("log")
    migrate(url)
    with standby_of(primary) as standby:
        [said] = found(standby.url("log"), "standby")

    assert (said.level, said.cure) == ("error", "connect to the primary")


def test_unreachable_server_is_named(own_postgres: StartServer) -> None:
    """F9: no server at the address is a finding, not a crash."""
    server = own_postgres(fsync=False)
    server.stop()

    assert [one.level for one in found(server.url("log"), "connection")] == ["error"]
