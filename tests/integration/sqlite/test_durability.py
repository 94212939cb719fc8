"""Acknowledged events survive a killed process."""

import pytest

from seriatim.store.sqlite.store import SqliteStore
from tests.integration.sqlite.store_appender import StoreAppender, make_facts, read_everything
from tests.integration.sqlite.writer_launcher import start_writer


@pytest.mark.parametrize("acknowledged", [1, 40, 250])
def test_acknowledged_appends_survive_kill_9(
    path: str, appender: StoreAppender, acknowledged: int
) -> None:
    """F5: every append acknowledged before a kill -9 is stored."""
    writer = start_writer(path, 1_000_000, "doomed")
    assert writer.stdout is not None
    receipts = [int(writer.stdout.readline()) for _ in range(acknowledged)]
    writer.kill()
    receipts += [int(line) for line in writer.stdout.read().splitlines()]
    writer.wait()
    writer.stdout.close()
    store = SqliteStore(path)
    found = [record.position for record in read_everything(store)]
    assert receipts == list(range(1, len(receipts) + 1))
    # One more append may have been committed whose receipt was not printed.
    assert found in (receipts, [*receipts, len(receipts) + 1])
    assert appender.append(store, *make_facts(1)).first_position == len(found) + 1
    assert all(finding.level == "ok" for finding in store.verify())
    store.close()


def test_commits_are_synchronous(store: SqliteStore) -> None:
    """F5: the file is in WAL mode with synchronous=FULL."""
    assert store._writer.read_settings() == ("wal", 2)
