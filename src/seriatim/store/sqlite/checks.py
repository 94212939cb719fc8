"""Checks of a SQLite log: its integrity (`verify`) and its environment (`doctor`)."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from seriatim.core.ids import event_keys, idempotency_index_key, stream_key
from seriatim.core.kinds import Rules
from seriatim.store.common import check_payload_indexes
from seriatim.store.port import Finding
from seriatim.store.sqlite import migrate
from seriatim.store.sqlite.declarations import SqliteDeclarations
from seriatim.store.sqlite.statements import CHECKS, Row

_PAGE = 10_000
_SYNCHRONOUS_FULL = 2
_SCARCE_BYTES = 256 * 1024 * 1024
_LARGE_WAL_BYTES = 256 * 1024 * 1024
_NETWORK_FILE_SYSTEMS = (
    "nfs",
    "cifs",
    "smb",
    "9p",
    "fuse.sshfs",
    "ceph",
    "glusterfs",
    "lustre",
    "afs",
)
_RESTORE_HINT = "restore the file from a backup, then raise the epoch"


def verify(connection: sqlite3.Connection, declarations: SqliteDeclarations) -> Iterator[Finding]:
    """Check the whole file: pages, positions, streams, appends and index keys."""
    pages = _check_pages(connection)
    yield pages
    if pages.level == "error":
        return  # checks of the events on damaged pages mean nothing
    count, first, last = connection.execute(CHECKS["count_positions"]).fetchone()
    complete = count == last and first == 1
    yield _make_finding("positions", complete, f"{count} events from {first} to {last}")
    for statement, check in (
        ("count_broken_streams", "streams"),
        ("count_broken_appends", "appends"),
    ):
        (broken,) = connection.execute(CHECKS[statement]).fetchone()
        yield _make_finding(check, broken == 0, f"{broken} {check} are not contiguous")
    yield from _check_keys(connection, declarations.load_rules(connection), last)


def _check_pages(connection: sqlite3.Connection) -> Finding:
    try:
        problems = [text for (text,) in connection.execute("pragma integrity_check")]
    except sqlite3.DatabaseError as error:
        problems = [str(error)]
    return _make_finding(
        "integrity", problems == ["ok"], "SQLite's own check: " + "; ".join(problems)[:500]
    )


def _check_keys(connection: sqlite3.Connection, rules: Rules, until: int) -> Iterator[Finding]:
    after = expected = wrong = missing = 0
    first_wrong = None
    while rows := connection.execute(CHECKS["list_index_keys"], (after, until, _PAGE)).fetchall():
        for row in rows:
            keys = rules.row_index_keys(row[:5])
            expected += len(keys)
            absent = _count_absent(connection, row[0], keys)
            missing += absent
            if absent or not _has_correct_keys(row):
                wrong += 1
                first_wrong = first_wrong or row[0]
        after = rows[-1][0]
    (stored,) = connection.execute(CHECKS["count_keys"], (until,)).fetchone()
    where = f", first at position {first_wrong}" if first_wrong else ""
    yield _make_finding("index_keys", wrong == 0, f"{wrong} events have wrong index keys{where}")
    message = f"{stored} rows hold {expected} keys of tags and payload indexes"
    yield _make_finding("tags", stored == expected and not missing, message)


def _has_correct_keys(row: Row) -> bool:
    tenant = row[1]
    event_id, stream_type, stream_id, producer, key = row[5:10]
    stored_event, stored_stream, stored_key = row[10:]
    stream = None if stream_type is None else stream_key(tenant, stream_type, stream_id)
    return bool(
        stored_event in event_keys(event_id)
        and stored_stream == stream
        and stored_key in (None, idempotency_index_key(tenant, producer, key or ""))
    )


def _count_absent(connection: sqlite3.Connection, position: int, keys: tuple[bytes, ...]) -> int:
    return sum(
        connection.execute(CHECKS["count_key_rows"], (key, position)).fetchone() == (0,)
        for key in keys
    )


def _make_finding(check: str, success: bool, message: str) -> Finding:
    if success:
        return Finding("ok", check, message)
    return Finding("error", check, message, _RESTORE_HINT)


def doctor(
    path: str, settings: tuple[str, int], connection: sqlite3.Connection, rules: Rules
) -> Iterator[Finding]:
    """Report problems of the file's settings and environment, and how to repair them.

    Args:
        path: The path of the file.
        settings: The journal mode and the synchronous level of the writer.
        connection: A connection to the file.
        rules: The rules of the stored declarations.

    """
    mode, level = settings
    durable = mode == "wal" and level >= _SYNCHRONOUS_FULL
    message = f"journal mode {mode}, synchronous {level}"
    cure = "" if durable else "open the log again; something changed the mode of its file"
    yield Finding("ok" if durable else "error", "durability", message, cure)
    yield _check_version(connection)
    yield _check_permissions(path)
    yield _check_space(path)
    yield _check_wal(path)
    yield _check_file_system(path)
    yield from check_payload_indexes(rules)


def _check_version(connection: sqlite3.Connection) -> Finding:
    version = migrate.read_schema_version(connection)
    message = f"schema version {version}, this program uses {migrate.SCHEMA_VERSION}"
    if version > migrate.SCHEMA_VERSION:
        return Finding("warning", "schema", message, "upgrade the package soon")
    return Finding("ok", "schema", message)


def _check_permissions(path: str) -> Finding:
    mode = Path(path).stat().st_mode & 0o777
    message = f"{path} has mode {mode:o}"
    if mode & 0o002:
        return Finding("warning", "permissions", message, f"chmod o-w {path}")
    return Finding("ok", "permissions", message)


def _check_space(path: str) -> Finding:
    free = shutil.disk_usage(Path(path).parent).free
    message = f"{free // 2**20} MiB free on the disk of the file"
    if free < _SCARCE_BYTES:
        return Finding("warning", "disk_space", message, "free space or move the file")
    return Finding("ok", "disk_space", message)


def _check_wal(path: str) -> Finding:
    wal = Path(path + "-wal")
    size = wal.stat().st_size if wal.exists() else 0
    message = f"the write-ahead log holds {size // 1024} KiB"
    if size > _LARGE_WAL_BYTES:
        cure = "find the program that keeps a read transaction open on the file"
        return Finding("warning", "wal_size", message, cure)
    return Finding("ok", "wal_size", message)


def _check_file_system(path: str) -> Finding:
    kind = _find_mount_type(os.path.realpath(path))
    if kind.startswith(_NETWORK_FILE_SYSTEMS):
        message = f"{path} is on a network file system ({kind}), whose locks are not reliable"
        return Finding("error", "file_system", message, "move the file to a local disk")
    return Finding("ok", "file_system", f"the file is on {kind or 'an unknown file system'}")


def _find_mount_type(path: str) -> str:
    """Return the type of the file system of a path, empty where `/proc/mounts` does not exist."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    longest, kind = "", ""
    for line in mounts:
        _, mount_point, mount_type, *_ = line.split(" ")
        inside = path == mount_point or path.startswith(mount_point.rstrip("/") + "/")
        # The innermost mount counts; of several at one place, the last one hides the others.
        if inside and len(mount_point) >= len(longest):
            longest, kind = mount_point, mount_type
    return kind
