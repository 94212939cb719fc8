"""Every error of SQLite and what it means for a caller, in one place."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from seriatim.core.errors import BackendFailure

_PRIMARY = 0xFF  # the low byte of an extended code says what kind of error it is


class _Meaning(msgspec.Struct, frozen=True):
    message: str
    retryable: bool = False


_BUSY = _Meaning(
    "another process keeps {path} locked; try again, or raise the busy timeout", retryable=True
)
_DENIED = _Meaning("{path} cannot be written: grant write permission on the file and its folder")
_OTHER = _Meaning("SQLite failed on {path}: {error}")
_MEANINGS = {
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_FULL: _Meaning("the disk of {path} is full: free some space", retryable=True),
    sqlite3.SQLITE_IOERR: _Meaning(
        "the disk or file system under {path} failed ({error}): check space, quota and hardware",
        retryable=True,
    ),
    sqlite3.SQLITE_READONLY: _DENIED,
    sqlite3.SQLITE_PERM: _DENIED,
    sqlite3.SQLITE_CANTOPEN: _Meaning(
        "{path} cannot be opened: its folder must exist, and both must be readable and writable"
    ),
    sqlite3.SQLITE_CORRUPT: _Meaning(
        "{path} is damaged ({error}): restore it from a backup, and check the disk"
    ),
    sqlite3.SQLITE_NOTADB: _Meaning(
        "{path} is not a SQLite database: name another file, or restore it from a backup"
    ),
    sqlite3.SQLITE_CONSTRAINT: _Meaning(
        "the rules of {path} itself refused the write ({error}): verify the log"
    ),
    sqlite3.SQLITE_TOOBIG: _Meaning("a value is larger than SQLite can hold in {path}"),
    sqlite3.SQLITE_NOMEM: _Meaning("there is no memory left to work on {path}", retryable=True),
}

# A commit that failed like this wrote no complete commit record, so nothing is stored.
_CLEAR_AT_COMMIT = {
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
# What a statement inside a transaction fails by when the file's own disk or memory fails.
_LACKING = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
}
_CONNECTION_STAYS_GOOD = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_LOCKED,
}


def code_of(error: sqlite3.Error) -> int | None:
    """Return SQLite's extended code, which errors of the Python module itself have not."""
    return getattr(error, "sqlite_errorcode", None)


def is_busy(error: sqlite3.Error) -> bool:
    """Tell whether another connection was merely in the way."""
    code = code_of(error)
    return code is not None and code & _PRIMARY in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_outage(error: sqlite3.Error) -> bool:
    """Tell whether the file is locked, or the disk or memory fails: no fault of a statement."""
    code = code_of(error)
    return code is not None and code & _PRIMARY in _OUTAGES


def is_lacking(error: sqlite3.Error) -> bool:
    """Tell whether the disk or memory fails."""
    code = code_of(error)
    return code is not None and code & _PRIMARY in _LACKING


def spoils_connection(error: BaseException) -> bool:
    """Tell whether a connection should not be used again after this error."""
    if not isinstance(error, sqlite3.Error):
        return False
    code = code_of(error)
    return code is None or code & _PRIMARY not in _CONNECTION_STAYS_GOOD


def failure(error: sqlite3.Error, path: str, *, at_commit: bool = False) -> BackendFailure:
    """Return what a caller gets for an error: its cause, its cure, and whether it is ambiguous."""
    code = code_of(error)
    meaning = _OTHER if code is None else _MEANINGS.get(code & _PRIMARY, _OTHER)
    unclear = code is None or not {code, code & _PRIMARY} & _CLEAR_AT_COMMIT
    ambiguous = at_commit and unclear
    message = meaning.message.format(path=path, error=error)
    if ambiguous:
        message += "; whether the append is stored is unknown: repeat it with the same keys"
    details = {
        "ambiguous": ambiguous,
        "sqlite": getattr(error, "sqlite_errorname", type(error).__name__),
    }
    found = BackendFailure(message, details=details, retryable=meaning.retryable or ambiguous)
    found.__cause__ = error
    return found


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn the errors of SQLite inside the block into failures."""
    try:
        yield
    except sqlite3.Error as error:
        raise failure(error, path) from error


def lasting(message: str) -> BackendFailure:
    """Return a failure that repeating the call does not cure."""
    return BackendFailure(message, retryable=False)
