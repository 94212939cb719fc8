"""Findings of verify and doctor in a sound and in a damaged file."""

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
    """Return what was found, by check."""
    return {finding.check: finding.level for finding in findings}


@pytest.fixture
def filled(store: SqliteStore, appender: StoreAppender) -> SqliteStore:
    """A log of a few streams, tags, keys and an indexed path."""
    store.declare(PayloadIndex("u", "n"))
    for number in range(5):
        stream = ("order", f"{number % 2}")
        event = NewEvent("t", {"n": number}, stream=stream, tags=("a", "b", "a"))
        appender.append(store, event, NewEvent("u", {"n": number}), key=f"k{number}")
    return store


def test_a_sound_log_passes_every_check(filled: SqliteStore) -> None:
    """F2: verify proves pages, positions, streams, appends, index keys and tags."""
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
    """F2: a change that bypassed the triggers is reported, with a cure."""
    intruder = sqlite3.connect(path, isolation_level=None)
    intruder.execute(f"drop trigger {trigger}")
    intruder.execute(statement)
    intruder.close()
    findings = [finding for finding in filled.verify() if finding.level == "error"]
    assert check in levels(findings)
    assert all(finding.cure for finding in findings)


def test_a_healthy_setting_has_nothing_to_cure(filled: SqliteStore) -> None:
    """F9: doctor checks durability, schema, permissions, space and the file system."""
    found = levels(list(filled.doctor()))
    assert found["durability"] == found["schema"] == found["permissions"] == "ok"
    assert {"disk_space", "wal_size", "file_system"} <= set(found)


def test_doctor_reports_index_coverage(filled: SqliteStore) -> None:
    """A8: an index that was declared after events of its type is named, with a cure."""
    filled.declare(PayloadIndex("t", "n"))
    found = [one for one in filled.doctor() if one.check.startswith("payload index")]
    assert [one.level for one in found] == ["warning", "ok"]
    assert found[0].message == (
        "the index on n of t does not cover positions up to 10, which queries scan"
    )
    assert found[0].cure


def test_doctor_names_what_endangers_a_log(
    filled: SqliteStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F9: open permissions, a network file system and a scarce disk are named with a cure."""
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
