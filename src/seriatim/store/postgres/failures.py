"""From Postgres's errors to ours, in one place."""

from __future__ import annotations

import psycopg
from psycopg import errors as pg

from seriatim.core.errors import BackendFailure, SeriatimError

SEQUENCE_BROKEN = "SQ001"
RULES_CHANGED = "SQ002"
LOCK_BUSY = "55P03"

# An append that met one of these is decided again with the lock held: each request its own answer.
TO_BE_DECIDED = frozenset({"23505", SEQUENCE_BROKEN, RULES_CHANGED})

_CURES: dict[str, tuple[str, bool]] = {
    "42501": ("the role lacks a grant: run seriatim init --app-role ROLE as the owner", False),
    "42P01": ("the log's tables are missing: run seriatim init", False),
    "42883": ("the log's functions are missing or old: run seriatim init", False),
    "3F000": ("the log's schema is missing: run seriatim init", False),
    "25006": ("the server is read-only, perhaps a standby: connect to the primary", False),
    "53100": ("the database's disk is full: free space, then repeat", True),
    "53300": ("the server has no connection left: lower pool_size or raise max_connections", True),
    "28P01": ("the password was not accepted: check the URL", False),
    "28000": ("the role may not log in: check the URL", False),
    "3D000": ("the database does not exist: create it, or check the URL", False),
    LOCK_BUSY: ("another writer has held the log's lock too long: try again", True),
    "57014": ("the statement was cancelled by the server: try again", True),
}


def cure_of(state: str | None) -> tuple[str, bool]:
    """Say what helps against an error of this state, and whether to try again."""
    return _CURES.get(state or "", ("", True))


def failure(error: psycopg.Error, doing: str, *, sent: bool = False) -> SeriatimError:
    """Explain an error; `sent` says that an append was under way and may have been committed."""
    state = error.sqlstate
    cure, retryable = cure_of(state)
    # An error that names its state ended the transaction; a lost connection says nothing.
    lost = state is None or isinstance(error, pg.AdminShutdown | pg.CrashShutdown)
    ambiguous = sent and lost
    text = f"Postgres failed while {doing}"
    if cure:
        text += f": {cure}"
    elif ambiguous:
        text += ": the connection was lost; repeat with the same keys or event ids"
    elif state is None:
        text += ": the connection failed"
    details = {"sqlstate": state, "ambiguous": ambiguous}
    found = BackendFailure(text, details=details, retryable=retryable)
    found.__cause__ = error
    return found
