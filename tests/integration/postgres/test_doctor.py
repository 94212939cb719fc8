"""Doctor reports problems of a database and their remedies (F9)."""

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


def findings_of(url: str, check: str) -> list[Finding]:
    """Return the findings of one check."""
    return [finding for finding in diagnose(url) if finding.check == check]


def test_sound_database_has_no_findings(own_postgres: StartServer) -> None:
    """F9: a durable server with a new log has no finding but the superuser's rights."""
    server = own_postgres()
    url = server.create_database("log")
    migrate(url)

    assert [one.check for one in diagnose(url) if one.level != "ok"] == [
        "grants",
        "row security",
    ]


def test_unsafe_settings_are_reported(own_postgres: StartServer) -> None:
    """F9: each unsafe setting is reported with its level."""
    server = own_postgres(fsync=False, settings={"full_page_writes": "off", "autovacuum": "off"})
    url = server.create_database("log")
    migrate(url)

    said = {one.message: one.level for one in diagnose(url) if one.check == "settings"}

    assert sorted(said.values()) == ["error", "error", "warning"]
    assert all(
        any(message.startswith(name) for message in said)
        for name in ("fsync", "full_page_writes", "autovacuum")
    )


def test_old_schema_is_reported(empty_postgres_url: str) -> None:
    """F9, F3: a missing or old schema is reported with its version and the command to run."""
    assert findings_of(empty_postgres_url, "schema")[0].cure == "run seriatim init"
    migrate(empty_postgres_url, target=SCHEMA_VERSION - 1)

    [old] = findings_of(empty_postgres_url, "schema")

    assert (old.level, old.cure) == ("error", "run seriatim init")
    assert f"version {SCHEMA_VERSION - 1}" in old.message


def test_missing_grants_are_reported(postgres_url: str, make_role: MakeRole) -> None:
    """F9: doctor runs without read access, and reports the option that grants it."""
    [said] = findings_of(as_role(postgres_url, make_role()), "grants")

    assert said.level == "error"
    assert "--app-role" in said.cure


@pytest.mark.parametrize("trigger", ["check_group", "refuse_change"])
def test_disabled_trigger_is_reported(postgres_url: str, trigger: str) -> None:
    """F9, F2: a disabled or dropped trigger is an error."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"alter table seriatim.events disable trigger {trigger}".encode())
    [disabled] = findings_of(postgres_url, "triggers")
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"drop trigger {trigger} on seriatim.events".encode())
    [dropped] = findings_of(postgres_url, "triggers")

    assert (disabled.level, dropped.level) == ("error", "error")
    assert trigger in disabled.message


def test_replica_triggers_are_reported(postgres_url: str) -> None:
    """F9, F2: a trigger that fires only on replicas is an error."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute("alter table seriatim.events enable replica trigger refuse_change")

    assert findings_of(postgres_url, "triggers")[0].level == "error"


def test_role_that_bypasses_row_security_is_reported(
    postgres_url: str, app_url: str, make_role: MakeRole
) -> None:
    """F9, K2: a role that bypasses row-level security is a warning."""
    role = make_role()
    grant(postgres_url, role)
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"alter role {role} bypassrls".encode())
    urls = (postgres_url, as_role(postgres_url, role), app_url)

    [superuser], [bypassing], [plain] = (findings_of(url, "row security") for url in urls)

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
def test_disabled_row_security_is_reported(postgres_url: str, change: str) -> None:
    """F9, K2: disabled row-level security is an error that names the table."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute(change.encode())

    [said] = findings_of(postgres_url, "row security")

    assert said.level == "error"
    assert said.message.endswith(" events")


def test_long_transaction_is_reported(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: a long transaction is reported with its process and application."""
    checks = load_postgres_statements("checks.sql", "seriatim")
    text = checks["list_long_transactions"].replace("60 seconds", "0.1 seconds")
    monkeypatch.setitem(checks, "list_long_transactions", text)
    with psycopg.connect(postgres_url, application_name="sleeper") as connection:
        connection.execute("select pg_sleep(0.2)")
        [said] = findings_of(postgres_url, "long transaction")
        pid = connection.info.backend_pid

    assert said.level == "warning"
    assert str(pid) in said.message
    assert "sleeper" in said.message


def test_held_lock_is_reported(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F9, B14: a process that holds the append lock for long is reported with its pid."""
    checks = load_postgres_statements("checks.sql", "seriatim")
    text = checks["list_lock_holders"].replace("5 seconds", "0.1 seconds")
    monkeypatch.setitem(checks, "list_lock_holders", text)
    with (
        seriatim.open(postgres_url) as log,
        psycopg.connect(postgres_url, application_name="my app") as connection,
    ):
        log.append([NewEvent("held", {})], connection=connection)
        connection.execute("select pg_sleep(0.2)")
        [said] = findings_of(postgres_url, "append lock")
        pid = connection.info.backend_pid

    assert said.level == "error"
    assert "my app" in said.message
    assert str(pid) in said.cure


def test_standby_is_reported(own_postgres: StartServer) -> None:
    """F9, F6: doctor runs on a standby and reports it."""
    primary = own_postgres(fsync=False)
    url = primary.create_database("log")
    migrate(url)
    with standby_of(primary) as standby:
        [said] = findings_of(standby.url("log"), "standby")

    assert (said.level, said.cure) == ("error", "connect to the primary")


def test_unreachable_server_is_reported(own_postgres: StartServer) -> None:
    """F9: an unreachable server is a finding, not an exception."""
    server = own_postgres(fsync=False)
    server.stop()

    assert [one.level for one in findings_of(server.url("log"), "connection")] == ["error"]
