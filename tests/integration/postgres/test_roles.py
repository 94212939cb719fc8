"""The application role can do everything the library does; a plain owner can create a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import seriatim
from seriatim import (
    Command,
    EventType,
    ExpectedContext,
    ExpectedSeq,
    Filter,
    NewEvent,
    Query,
    RetryPolicy,
    StreamKind,
)
from seriatim.log.verification import verify
from seriatim.store.port import Finding
from seriatim.store.postgres.migrate import grant, migrate
from tests.fixtures.postgres_server import PostgresServer
from tests.integration.postgres.conftest import as_role, role_of

MakeRole = Callable[..., str]


def findings_of(log: seriatim.Log, check: str) -> list[Finding]:
    """Return the findings of one check."""
    return [finding for finding in log.store.doctor() if finding.check == check]


def _refuse(_: object) -> None:
    raise ValueError("refused")


def use_everything(url: str) -> None:
    """Use every kind of operation that the library offers."""
    stream = ("cart", "c-1")
    context = Query([Filter(types=["placed"], payload=[{"n": 1}])])
    with seriatim.open(url) as log:
        log.declare(StreamKind(name="cart"), EventType(event_type="filled", kind="cart"))
        log.append([NewEvent("filled", {"n": 1}, stream=stream, tags=("red", "blue"))])
        log.append([NewEvent("filled", {"n": 2}, stream=stream)], ExpectedSeq(stream, 1))
        log.append([NewEvent("placed", {"n": 1})], ExpectedContext(context, None))
        log.append([NewEvent("many", {"n": n}, tags=("green",)) for n in range(60)])
        assert log.append([NewEvent("k", {})], idempotency_key="k").replayed is False
        assert log.append([NewEvent("k", {})], idempotency_key="k").replayed is True
        command = Command(actor="a", endpoint="/x", key="1", response={"done": True})
        log.append([NewEvent("commanded", {})], command=command)
        assert log.append([NewEvent("commanded", {})], command=command).replayed
        assert log.purge_commands() == 0
        with psycopg.connect(url) as connection:
            log.append([NewEvent("mine", {})], connection=connection)
        assert log.query(context).context_version == 3
        assert len(list(log.read())) == log.head() == 66
        assert log.streams("cart")[0].last_seq == 2
        subscription = log.subscribe("all", idle_timeout=0.1, poll_s=0.05)
        assert sum(len(batch) for batch in subscription) == 66
        subscription.reset(10)
        policy: dict[str, Any] = {"retry": RetryPolicy(attempts=1), "idle_timeout": 0.0}
        log.subscribe("skipping", on_poison="skip", **policy).run(_refuse)
        assert log.subscriptions.skipped("skipping")
        log.subscribe("parking", **policy).run(_refuse)
        log.subscriptions.retry("parking")
        log.subscribe("parking", **policy).run(_refuse)
        log.subscriptions.skip("parking", 1, reason="refused")
        log.subscriptions.reset("parking", 0)
        log.traces.put_projection_cursor("graph", 5)
        assert verify(log.store).ok


def test_application_role_can_use_everything(app_url: str) -> None:
    """F2, F9: the grants of `init --app-role` suffice for every operation of the library."""
    use_everything(app_url)

    with seriatim.open(app_url) as log:
        assert [finding.level for finding in findings_of(log, "grants")] == ["ok"]
        before = log.identity()
        assert log.store.raise_epoch().epoch == before.epoch + 1


def test_application_role_holds_only_insert_and_select(app_url: str, postgres_url: str) -> None:
    """F2: on events the role has INSERT and SELECT, and no other privilege."""
    role = role_of(app_url)
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute(
            "select privilege_type from information_schema.role_table_grants"
            " where grantee = %s and table_schema = 'seriatim' and table_name = 'events'",
            (role,),
        ).fetchall()

    assert sorted(row[0] for row in rows) == ["INSERT", "SELECT"]


def test_an_upgrade_needs_no_new_grant(empty_postgres_url: str, make_role: MakeRole) -> None:
    """F3, F9: a role that could move cursors before the upgrade can skip batches after it."""
    role, reader = make_role(), make_role()
    migrate(empty_postgres_url, target=7)
    with psycopg.connect(empty_postgres_url) as connection:
        for statement in (
            f"grant usage on schema seriatim to {role}, {reader}",
            f"grant select on all tables in schema seriatim to {role}, {reader}",
            f"grant insert on seriatim.events, seriatim.event_tags to {role}",
            f"grant insert, update on seriatim.cursors, seriatim.leases to {role}",
            f"grant execute on all functions in schema seriatim to {role}",
        ):
            connection.execute(statement.encode())
    migrate(empty_postgres_url)

    with seriatim.open(as_role(empty_postgres_url, role)) as log:
        log.append([NewEvent("a", {})])
        policy = RetryPolicy(attempts=1)
        log.subscribe("s", retry=policy, on_poison="skip", idle_timeout=0.0).run(_refuse)
        assert len(log.subscriptions.skipped("s")) == 1
        log.subscriptions.reset("s", 0)
        assert log.subscriptions.skipped("s") == []
    with psycopg.connect(empty_postgres_url) as connection:
        rows = connection.execute(
            "select privilege_type from information_schema.role_table_grants"
            " where grantee = %s and table_name = 'skipped_batches'",
            (reader,),
        ).fetchall()
    assert rows == [("SELECT",)]


def test_role_without_grants_is_refused_with_the_command_to_run(
    postgres_url: str, make_role: MakeRole
) -> None:
    """L3, F2: a missing grant is `backend_failure` with the command that grants it."""
    url = as_role(postgres_url, make_role())

    with pytest.raises(seriatim.BackendFailure, match="init --app-role") as refused:
        seriatim.open(url)

    assert not refused.value.retryable


@pytest.mark.parametrize(
    "missing",
    [
        "insert on seriatim.events",
        "update on seriatim.leases",
        "insert on seriatim.commands",
        "insert on seriatim.skipped_batches",
    ],
)
def test_doctor_reports_missing_grants(postgres_url: str, app_url: str, missing: str) -> None:
    """F9: doctor names the role that lacks a grant and the command to run."""
    role = role_of(app_url)
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"revoke {missing} from {role}".encode())

    with seriatim.open(app_url) as log:
        [found] = findings_of(log, "grants")
        if "events" in missing:
            with pytest.raises(
                seriatim.BackendFailure, match="the role lacks privileges"
            ) as refused:
                log.append([NewEvent("refused", {})])
            assert (refused.value.ambiguous, refused.value.retryable) == (False, False)

    assert found.level == "error"
    assert role in found.message
    assert role in found.cure


def test_owner_need_not_be_superuser(postgres_server: PostgresServer, make_role: MakeRole) -> None:
    """F9: a plain role that owns its database creates, migrates, grants and uses a log."""
    owner, app = make_role(), make_role()
    admin_url = postgres_server.create_database(f"owned_by_{owner}")
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(f"alter database owned_by_{owner} owner to {owner}".encode())
    url = as_role(admin_url, owner)

    migrate(url)
    grant(url, app)
    use_everything(url)
    with seriatim.open(as_role(admin_url, app)) as log:
        log.append([NewEvent("app", {})])
        assert log.head() == 70  # with three acts of operators
    with seriatim.open(url) as log:
        levels = {finding.check: finding.level for finding in log.store.doctor()}
    postgres_server.drop_database(f"owned_by_{owner}")

    assert levels["grants"] == "warning"  # the owner may change what it owns
    assert {name for name, level in levels.items() if level == "error"} <= {"settings"}


def test_two_application_roles_share_a_log(postgres_url: str, make_role: MakeRole) -> None:
    """F9, B14: programs under two roles append to one log, and one waits for the other's lock."""
    roles = [make_role(), make_role()]
    for role in roles:
        grant(postgres_url, role)
    one, two = (as_role(postgres_url, role) for role in roles)
    quick = seriatim.Settings(lock_wait_s=0.3, lock_hold_s=0.3, timeout_s=1.5)
    with (
        seriatim.open(one) as first,
        seriatim.open(two, settings=quick) as second,
        psycopg.connect(one) as caller,
    ):
        first.append([NewEvent("one", {})])
        second.append([NewEvent("two", {})])
        first.append([NewEvent("held", {})], connection=caller)
        with pytest.raises(seriatim.BackendFailure) as waited:
            second.append([NewEvent("waiting", {})], timeout=10)
        caller.rollback()
        second.append([NewEvent("three", {})])
        assert second.head() == 3

    assert (waited.value.ambiguous, waited.value.retryable) == (False, True)
