"""Translate SQLite errors into Seriatim errors, with cause and cure."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from seriatim.core.errors import BackendFailure

_PRIMARY = 0xFF  # the low byte of an extended code is the primary code


class _Meaning(msgspec.Struct, frozen=True):
    message: str
    retryable: bool = False


_BUSY = _Meaning(
    "another process holds the lock of {path}: try again, or end a transaction that keeps it open",
    retryable=True,
)
_DENIED = _Meaning("{path} cannot be written: grant write permission on the file and its folder")
_OTHER = _Meaning("SQLite failed on {path}: {error}")
_MEANINGS = {
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_FULL: _Meaning(
        "the disk of {path} is full: free some space, then try again", retryable=True
    ),
    sqlite3.SQLITE_IOERR: _Meaning(
        "the disk or file system under {path} failed ({error}): check space, quota and hardware",
        retryable=True,
    ),
    sqlite3.SQLITE_READONLY: _DENIED,
    sqlite3.SQLITE_PERM: _DENIED,
    sqlite3.SQLITE_CANTOPEN: _Meaning(
        "cannot open {path}: its folder must exist, and both must be readable and writable"
    ),
    sqlite3.SQLITE_CORRUPT: _Meaning(
        "{path} is damaged ({error}): restore it from a backup, and check the disk"
    ),
    sqlite3.SQLITE_NOTADB: _Meaning(
        "{path} is not a SQLite database: choose another file, or restore it from a backup"
    ),
    sqlite3.SQLITE_CONSTRAINT: _Meaning(
        "a constraint of {path} rejected the write ({error}): run seriatim verify"
    ),
    sqlite3.SQLITE_TOOBIG: _Meaning(
        "a value is too large for SQLite in {path}: shorten the payload"
    ),
    sqlite3.SQLITE_NOMEM: _Meaning(
        "out of memory while using {path}: read or write fewer events at a time", retryable=True
    ),
}

# After these errors COMMIT wrote no complete commit record, so nothing is stored.
_NOTHING_STORED_AT_COMMIT = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
}
_OUTAGES = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}
# Errors of a statement inside a transaction that show a failing disk or a lack of memory.
_RESOURCE_FAILURES = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
}
_CONNECTION_USABLE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_LOCKED,
}


def get_error_code(error: sqlite3.Error) -> int | None:
    """Return SQLite's extended error code; errors of the Python module itself have none."""
    return getattr(error, "sqlite_errorcode", None)


def is_busy(error: sqlite3.Error) -> bool:
    """Return True if another connection holds the lock."""
    code = get_error_code(error)
    return code is not None and code & _PRIMARY in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_outage(error: sqlite3.Error) -> bool:
    """Return True if the file is locked or unusable, which is not caused by the statement."""
    code = get_error_code(error)
    return code is not None and code & _PRIMARY in _OUTAGES


def is_resource_failure(error: sqlite3.Error) -> bool:
    """Return True if the disk or the memory fails."""
    code = get_error_code(error)
    return code is not None and code & _PRIMARY in _RESOURCE_FAILURES


def invalidates_connection(error: BaseException) -> bool:
    """Return True if a connection must not be used again after this error."""
    if not isinstance(error, sqlite3.Error):
        return False
    code = get_error_code(error)
    return code is None or code & _PRIMARY not in _CONNECTION_USABLE


def translate_error(error: sqlite3.Error, path: str, *, at_commit: bool = False) -> BackendFailure:
    """Return the Seriatim error for a SQLite error.

    Args:
        error: The error of the driver.
        path: The path of the file, for the message.
        at_commit: Whether COMMIT failed, so that the outcome may be ambiguous.

    Returns:
        A failure whose detail `ambiguous` says whether the write may be stored.

    """
    code = get_error_code(error)
    meaning = _OTHER if code is None else _MEANINGS.get(code & _PRIMARY, _OTHER)
    unclear = code is None or not {code, code & _PRIMARY} & _NOTHING_STORED_AT_COMMIT
    ambiguous = at_commit and unclear
    message = meaning.message.format(path=path, error=error)
    if ambiguous:
        message += "; the append may be stored: repeat it with the same keys"
    details = {
        "ambiguous": ambiguous,
        "sqlite": getattr(error, "sqlite_errorname", type(error).__name__),
    }
    retryable = meaning.retryable or ambiguous
    translated = BackendFailure(message, details=details, retryable=retryable)
    translated.__cause__ = error
    return translated


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Translate SQLite errors raised in the block."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate_error(error, path) from error


def make_permanent_failure(message: str) -> BackendFailure:
    """Return a failure that is not retryable."""
    return BackendFailure(message, retryable=False)
