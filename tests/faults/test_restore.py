"""Restores from an older backup, promotions and copies: consumers stop (F8, F6)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import psycopg
import pytest

import seriatim
from seriatim import NewEvent
from seriatim.core.canonical import canonical_text
from seriatim.core.query import MATCH_ALL
from seriatim.log.cursors import check_cursor
from seriatim.store.port import Cursor
from seriatim.store.postgres.migrate import migrate
from tests.faults.support import WAIT_S, wait_until
from tests.fixtures.postgres_server import PostgresServer

StartServer = Callable[..., PostgresServer]


class Standby(PostgresServer):
    """A server that follows another one until it is promoted."""

    def _wait_ready(self, process: Popen[bytes]) -> bool:
        pid_file = self.data_dir / "postmaster.pid"

        def stands_by() -> bool:
            lines = pid_file.read_text().splitlines() if pid_file.exists() else []
            return len(lines) >= 8 and lines[7].strip() in ("standby", "ready")

        wait_until(lambda: stands_by() or process.poll() is not None, "the standby's start")
        return process.poll() is None

    def promote(self) -> None:
        """Promote the standby to a primary."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute("select pg_promote(true, 30)")

    def wait_replayed(self, position: int) -> None:
        """Wait until the standby has replayed an event."""
        found = "select coalesce(max(position), 0) from seriatim.events"
        with psycopg.connect(self.url("log"), autocommit=True) as connection:
            wait_until(
                lambda: (connection.execute(found).fetchone() or (0,))[0] >= position,
                "replication",
            )


def append(log: seriatim.Log, count: int, what: str = "placed") -> None:
    """Append this many events, one by one."""
    for number in range(count):
        log.append([NewEvent(what, {"n": number})])


def new_log(server: PostgresServer) -> str:
    """Create a log in a new database."""
    url = server.create_database("log")
    migrate(url)
    return url


def consume(log: seriatim.Log, name: str = "mailer") -> int:
    """Run a durable subscription to the head and return its position."""
    subscription = log.subscribe(name, idle_timeout=0.1, poll_s=0.05)
    for _ in subscription:
        pass
    return subscription.position


def restore(server: PostgresServer, backup: Path) -> None:
    """Replace the data of a stopped server by an older copy and start it."""
    server.stop()
    owner = server.data_dir.stat()
    shutil.rmtree(server.data_dir)
    shutil.copytree(backup, server.data_dir)
    for path in (server.data_dir, *server.data_dir.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)
    server.data_dir.chmod(0o700)
    server.start()


def external_cursor(log: seriatim.Log, position: int) -> Cursor:
    """Make a cursor like one that a consumer stores outside the database."""
    identity = log.identity()
    return Cursor(
        tenant_id="default",
        purpose="subscription",
        name="outside",
        position=position,
        log_id=identity.log_id,
        epoch=identity.epoch,
        last_event_id=log.store.event_id_at(position) or "",
        query=canonical_text(MATCH_ALL.as_dict()),
    )


def identity_change(check: Callable[[], Any]) -> seriatim.LogIdentityChanged:
    """Return the LogIdentityChanged that a check raises; retry it after other failures."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            check()
        except seriatim.LogIdentityChanged as error:
            return error
        except seriatim.BackendFailure:
            time.sleep(0.05)
            continue
        raise AssertionError("no change of the identity was detected")
    raise AssertionError("the log did not become available")


def drain(tail: Any) -> int:
    """Read a tail until it is idle and return the number of events."""
    return sum(len(batch) for batch in tail)


@pytest.mark.parametrize("more", [0, 8])
def test_restore_from_an_older_copy(own_postgres: StartServer, more: int) -> None:
    """F8: after a restore, shorter or with other events, tails and external cursors fail."""
    server = own_postgres(fsync=False)
    url = new_log(server)
    with seriatim.open(url) as log:
        append(log, 5)
        assert consume(log) == 5
    server.stop()
    backup = server.home / "backup"
    shutil.copytree(server.data_dir, backup)
    server.start()

    with seriatim.open(url) as log:
        append(log, 5)
        tail = log.tail(after=0, idle_timeout=0.1, poll_s=0.05)
        assert drain(tail) == 10
        outside = external_cursor(log, 10)
        check_cursor(log.store, outside, outside.query)
        restore(server, backup)
        if more:
            with seriatim.open(url) as other:
                append(other, more, "another past")
        assert "restored" in identity_change(lambda: drain(tail)).message
        identity_change(lambda: check_cursor(log.store, outside, outside.query))
    # The cursor in the restored database was restored with it, and is valid.
    with seriatim.open(url) as log:
        assert consume(log) == 5 + more


def test_running_subscription_stops_at_a_restore(own_postgres: StartServer) -> None:
    """F8: a subscription that runs during a restore fails instead of continuing."""
    server = own_postgres(fsync=False)
    url = new_log(server)
    with seriatim.open(url) as log:
        append(log, 3)
    server.stop()
    backup = server.home / "backup"
    shutil.copytree(server.data_dir, backup)
    server.start()
    with seriatim.open(url) as log:
        append(log, 3)
        subscription = log.subscribe("mailer", poll_s=0.05)
        batches = iter(subscription)
        for _ in range(5):
            next(batches)
        restore(server, backup)
        with pytest.raises((seriatim.LogIdentityChanged, seriatim.LeaseLost)):
            read_until_error(batches)


def read_until_error(batches: Iterator[Any]) -> None:
    """Iterate until the subscription ends or fails, and retry lost connections."""
    while True:
        try:
            next(batches)
        except seriatim.BackendFailure:
            time.sleep(0.05)
        except StopIteration:
            return


@contextmanager
def standby_of(primary: PostgresServer) -> Iterator[Standby]:
    """Start a streaming standby."""
    copy = primary.home / "standby"
    primary.run_tool("pg_basebackup", "-D", copy, "-R", "--checkpoint=fast", "-X", "stream")
    with Standby(fsync=False, data_from=copy) as standby:
        yield standby


def test_standby_and_promotion(own_postgres: StartServer) -> None:
    """F6, F8: a standby is refused; a promoted one has a higher epoch, which consumers detect."""
    primary = own_postgres(fsync=False)
    url = new_log(primary)
    with seriatim.open(url) as log:
        append(log, 3)
        before = log.identity()
        assert consume(log) == 3
        with standby_of(primary) as standby:
            append(log, 2)
            standby.wait_replayed(5)
            with pytest.raises(seriatim.BackendFailure, match="standby"):
                seriatim.open(standby.url("log"))
            append(log, 1, "never replicated")
            primary.stop(immediate=True)
            standby.promote()
            with seriatim.open(standby.url("log")) as promoted:
                after = promoted.identity()
                with pytest.raises(seriatim.LogIdentityChanged, match="epoch"):
                    consume(promoted)
                promoted.append([NewEvent("continued", {})])
                promoted_head = promoted.head()

    assert (after.log_id, after.epoch) == (before.log_id, before.epoch + 1)
    assert promoted_head in (6, 7)


def test_open_log_never_reads_from_a_standby(own_postgres: StartServer) -> None:
    """F6: on an address that now leads to a standby, appends, tails and queries fail."""
    primary = own_postgres(fsync=False)
    url = new_log(primary)
    with seriatim.open(url, settings=seriatim.Settings(connect_timeout_s=2)) as log:
        append(log, 2)
        tail = log.tail(after=0, idle_timeout=0.1)
        assert drain(tail) == 2
        primary.stop()
        (primary.data_dir / "standby.signal").touch()
        shutil.chown(primary.data_dir / "standby.signal", primary.data_dir.stat().st_uid)
        Standby.start(as_standby(primary))
        with pytest.raises(seriatim.BackendFailure, match="standby"):
            log.append([NewEvent("refused", {})])
        with pytest.raises(seriatim.BackendFailure):
            drain(tail)
        with pytest.raises(seriatim.BackendFailure):
            log.query()


def as_standby(server: PostgresServer) -> Standby:
    """Return a server as a standby, which is not ready for writes."""
    server.__class__ = Standby
    assert isinstance(server, Standby)
    return server


def test_copied_database_has_another_epoch(own_postgres: StartServer) -> None:
    """F8: a copied or restored database has a new epoch; the original keeps its own."""
    server = own_postgres(fsync=False)
    url = new_log(server)
    with seriatim.open(url) as log:
        append(log, 3)
        before = log.identity()
        assert consume(log) == 3
    server.create_database("copy", template="log")
    server.run_tool("pg_dump", "-Fc", "-f", server.home / "log.dump", "log")
    server.create_database("restored")
    server.run_tool("pg_restore", "-d", "restored", server.home / "log.dump")

    for name in ("copy", "restored"):
        with seriatim.open(server.url(name)) as copy:
            assert copy.identity().log_id == before.log_id
            assert copy.identity().epoch == before.epoch + 1
            with pytest.raises(seriatim.LogIdentityChanged):
                consume(copy)
            copy.subscribe("mailer-2", start="head")
            append(copy, 1)
    with seriatim.open(url) as log:
        assert log.identity() == before
        assert consume(log) == 3


def test_reset_accepts_the_new_epoch(own_postgres: StartServer) -> None:
    """F8, E5: an operator's reset moves a cursor into the new epoch."""
    server = own_postgres(fsync=False)
    url = new_log(server)
    with seriatim.open(url) as log:
        append(log, 4)
        subscription = log.subscribe("mailer", idle_timeout=0.1)
        assert consume(log) == 4
        log.store.raise_epoch()
        with pytest.raises(seriatim.LogIdentityChanged):
            consume(log)
        subscription.reset(2)
        assert consume(log) == 4


@pytest.mark.parametrize("more", [0, 8])
def test_older_copy_of_a_sqlite_file(tmp_path: Path, more: int) -> None:
    """F8: in an older copy of a file, shorter or longer, a cursor from the newer file fails."""
    path = tmp_path / "log.db"
    url = f"sqlite:///{path}"
    with seriatim.open(url) as log:
        append(log, 5)
    shutil.copy(path, tmp_path / "older.db")
    with seriatim.open(url) as log:
        append(log, 5)
        outside = external_cursor(log, 10)
    for file in tmp_path.glob("log.db*"):
        file.unlink()
    shutil.copy(tmp_path / "older.db", path)
    with seriatim.open(url) as log:
        append(log, more, "another past")
        with pytest.raises(seriatim.LogIdentityChanged):
            check_cursor(log.store, outside, outside.query)
