"""Files that are damaged, missing, not writable, or on a full disk."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from seriatim.core.errors import BackendFailure
from seriatim.core.event import AppendResult, NewEvent
from seriatim.store.sqlite import failures
from seriatim.store.sqlite.store import SqliteStore
from tests.integration.sqlite.store_appender import StoreAppender, make_facts, read_everything
from tests.integration.sqlite.writer_launcher import ROOT, start_writer

NOBODY = 65534


def test_a_file_that_is_no_database_is_refused(path: str) -> None:
    """L3: the error says that the file is no database, and the file is unchanged."""
    Path(path).write_text("a shopping list" * 1000, encoding="utf-8")
    with pytest.raises(BackendFailure, match="not a SQLite database") as failure:
        SqliteStore(path)
    assert not failure.value.retryable
    assert Path(path).read_text(encoding="utf-8").startswith("a shopping list")


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    """L3: the error of a missing folder says that it must exist."""
    with pytest.raises(BackendFailure, match="its folder must exist") as failure:
        SqliteStore(str(tmp_path / "absent" / "log.db"))
    assert not failure.value.retryable


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users can enter but not write to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


OPEN_AS_NOBODY = """
import os, sys
from seriatim.core.errors import BackendFailure
from seriatim.store.sqlite.store import SqliteStore
if os.getuid() == 0:
    os.setuid(int(sys.argv[2]))
try:
    SqliteStore(sys.argv[1])
except BackendFailure as failure:
    print(failure.retryable, failure.message)
"""


@pytest.mark.parametrize("exists", [False, True])
def test_a_file_without_write_permission_is_reported(public_folder: Path, exists: bool) -> None:
    """L3: a missing permission is an error that names it, never an empty log."""
    path = public_folder / "log.db"
    if exists:
        SqliteStore(str(path)).close()
        path.chmod(0o444)
    public_folder.chmod(0o555)
    arguments = [sys.executable, "-c", OPEN_AS_NOBODY, str(path), str(NOBODY)]
    shown = subprocess.run(arguments, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    public_folder.chmod(0o755)
    assert shown.startswith("False ")
    assert "writable" in shown or "permission" in shown


def test_a_full_disk_loses_no_acknowledged_event(path: str, appender: StoreAppender) -> None:
    """L2: on a full disk the append fails, stored events remain, and appends work again later."""
    SqliteStore(path).close()
    writer = start_writer(path, 100_000, "full", 2_000_000)
    *receipts, last = writer.communicate()[0].splitlines()
    assert writer.returncode == 0
    assert last.startswith("failed False True")
    store = SqliteStore(path)
    assert [record.position for record in read_everything(store)] == [
        int(line) for line in receipts
    ]
    assert appender.append(store, *make_facts(1)).first_position == len(receipts) + 1
    assert all(finding.level == "ok" for finding in store.verify())
    store.close()


def test_a_moved_file_is_detected(store: SqliteStore, appender: StoreAppender, path: str) -> None:
    """L2: reads and appends of a log whose file was moved are refused."""
    appender.append(store, *make_facts(1))
    request = appender.request(store, make_facts(1))
    Path(path).rename(path + ".moved")
    for act in (store.head, lambda: store.append([request])):
        with pytest.raises(BackendFailure, match="moved, deleted or replaced"):
            act()


def test_a_damaged_page_is_reported(path: str, appender: StoreAppender) -> None:
    """L2: a damaged page is a backend failure of reads and a finding of verify."""
    store = SqliteStore(path)
    for _ in range(30):
        appender.append(store, *make_facts(20))
    store.close()
    with Path(path).open("r+b") as file:
        file.seek(0, os.SEEK_END)
        for start in range(40 * 4096, file.tell(), 4096):
            file.seek(start)
            file.write(b"\xff" * 64)
    store = SqliteStore(path)
    with pytest.raises(BackendFailure, match="damaged") as failure:
        read_everything(store)
    assert not failure.value.retryable
    assert any(finding.level == "error" for finding in store.verify())
    store.close()


def test_a_request_refused_by_the_database_fails_alone(
    store: SqliteStore, appender: StoreAppender
) -> None:
    """B1: a request that only a rule of the database refuses fails alone in its group."""
    appender.append(store, NewEvent("first", event_id="taken"))
    duplicate_appender = StoreAppender(
        lambda: "taken"
    )  # a generated id is not looked up before the append
    group = [
        appender.request(store, make_facts(1)),
        duplicate_appender.request(store, make_facts(1)),
        appender.request(store, make_facts(2)),
    ]
    before, refused, after = store.append(group)
    assert isinstance(before, AppendResult)
    assert isinstance(refused, BackendFailure)
    assert isinstance(after, AppendResult)
    assert "event_id is taken" in refused.message
    assert not refused.ambiguous
    assert (before.first_position, after.first_position, after.last_position) == (2, 3, 4)
    assert store.head() == 4


@pytest.mark.parametrize(
    ("code", "ambiguous"),
    [
        (sqlite3.SQLITE_FULL, False),
        (sqlite3.SQLITE_IOERR_WRITE, False),
        (sqlite3.SQLITE_IOERR_FSYNC, True),
        (sqlite3.SQLITE_IOERR, True),
        (None, True),
    ],
)
def test_an_unclear_commit_failure_is_ambiguous(code: int | None, ambiguous: bool) -> None:
    """B10: a failed COMMIT is ambiguous unless its error proves that nothing was stored."""
    error = sqlite3.OperationalError("simulated")
    if code is not None:
        error.sqlite_errorcode = code
    at_commit = failures.translate_error(error, "log.db", at_commit=True)
    assert at_commit.ambiguous is ambiguous
    assert at_commit.retryable
    assert not failures.translate_error(error, "log.db").ambiguous
