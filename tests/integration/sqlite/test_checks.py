"""Findings of verify and doctor in an intact and in a damaged file."""

import sqlite3
from pathlib import Path

import pytest

from seriatim.core.event import NewEvent
from seriatim.core.indexes import PayloadIndex
from seriatim.store.port import Finding
from seriatim.store.sqlite import checks
from seriatim.store.sqlite.store import SqliteStore
from tests.integration.sqlite.store_appender import StoreAppender


def levels(findings: list[Finding]) -> dict[str, str]:
    """Return the levels of findings by check."""
    return {finding.check: finding.level for finding in findings}


@pytest.fixture
def filled(store: SqliteStore, appender: StoreAppender) -> SqliteStore:
    """A log with some streams, tags, keys and a payload index."""
    store.declare(PayloadIndex("u", "n"))
    for number in range(5):
        stream = ("order", f"{number % 2}")
        event = NewEvent("t", {"n": number}, stream=stream, tags=("a", "b", "a"))
        appender.append(store, event, NewEvent("u", {"n": number}), key=f"k{number}")
    return store


def test_an_intact_log_passes_every_check(filled: SqliteStore) -> None:
    """F2: verify checks pages, positions, streams, appends, index keys and tags."""
    findings = list(filled.verify())
    assert set(levels(findings).values()) == {"ok"}
    assert set(levels(findings)) == {
        "integrity",
        "positions",
        "streams",
        "appends",
        "index_keys",
        "tags",
    }


@pytest.mark.parametrize(
    ("trigger", "statement", "check"),
    [
        ("events_keep_delete", "delete from events where position = 3", "positions"),
        ("events_keep_delete", "delete from events where position = 3", "streams"),
        (
            "events_keep_update",
            "update events set append_position = 1 where position = 4",
            "appends",
        ),
        ("events_keep_update", "update events set event_id = 'x' where position = 1", "index_keys"),
        (
            "events_keep_update",
            "update events set stream_id = 'x' where position = 1",
            "index_keys",
        ),
        (
            "events_keep_update",
            "update events set tags = '[\"c\"]' where position = 1",
            "index_keys",
        ),
        ("event_tags_keep_delete", "delete from event_tags where position = 1", "tags"),
        ("event_tags_keep_delete", "delete from event_tags where position = 2", "index_keys"),
        ("event_tags_keep_delete", "delete from event_tags where position = 2", "tags"),
        (
            "event_tags_of_events",
            "insert into event_tags (tag_key, position) values (randomblob(16), 2)",
            "tags",
        ),
    ],
)
def test_tampering_is_found(
    filled: SqliteStore, path: str, trigger: str, statement: str, check: str
) -> None:
    """F2: a change that bypassed the triggers is reported with a remedy."""
    intruder = sqlite3.connect(path, isolation_level=None)
    intruder.execute(f"drop trigger {trigger}")
    intruder.execute(statement)
    intruder.close()
    findings = [finding for finding in filled.verify() if finding.level == "error"]
    assert check in levels(findings)
    assert all(finding.cure for finding in findings)


def test_doctor_of_an_intact_log(filled: SqliteStore) -> None:
    """F9: doctor checks durability, schema, permissions, space and the file system."""
    found = levels(list(filled.doctor()))
    assert found["durability"] == found["schema"] == found["permissions"] == "ok"
    assert {"disk_space", "wal_size", "file_system"} <= set(found)


def test_doctor_reports_index_coverage(filled: SqliteStore) -> None:
    """A8: an index declared after events of its type is a warning with a remedy."""
    filled.declare(PayloadIndex("t", "n"))
    found = [one for one in filled.doctor() if one.check.startswith("payload index")]
    assert [one.level for one in found] == ["warning", "ok"]
    assert found[0].message == (
        "the index on n of t does not cover positions up to 10, which queries scan"
    )
    assert found[0].cure


def test_doctor_reports_risks(
    filled: SqliteStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F9: open permissions, a network file system and low disk space are reported."""
    Path(path).chmod(0o666)
    monkeypatch.setattr(checks, "_find_mount_type", lambda _: "nfs4")
    monkeypatch.setattr(checks, "_SCARCE_BYTES", 1 << 62)
    monkeypatch.setattr(checks, "_LARGE_WAL_BYTES", 0)
    findings = {finding.check: finding for finding in filled.doctor()}
    for check, level in (
        ("permissions", "warning"),
        ("file_system", "error"),
        ("disk_space", "warning"),
        ("wal_size", "warning"),
    ):
        assert findings[check].level == level
        assert findings[check].cure
