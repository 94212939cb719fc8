"""From Postgres's errors to ours, in one place."""

from __future__ import annotations

import psycopg

from seriatim.core.errors import BackendFailure, SeriatimError

SEQUENCE_BROKEN = "SQ001"
RULES_CHANGED = "SQ002"
LOCK_BUSY = "55P03"
CANCELLED = "57014"  # by statement_timeout, or by hand
# The server gave a transaction up for the sake of others: it stored nothing and may be repeated.
ROLLED_BACK = frozenset({"40001", "40P01"})

# Classes of SQLSTATE with which a server refuses a statement. 08 (connection), 57 (operator
# intervention), 58 (system error), F0 and XX (internal error) are not among them.
_REFUSAL_CLASSES = frozenset(
    "0A 0B 20 21 22 23 25 26 27 2B 2D 2F 34 38 39 3B 3D 3F 40 42 44 53 54 55 P0 SQ".split()  # noqa: SIM905 - one line instead of thirty
)
_NAMING = frozenset({"42501", "42P01", "42883", "3F000", "3D000"})
_UNKNOWN_OUTCOMES = frozenset({"40003"})  # statement completion unknown
# The server ended a session within its transaction, which is before it took any COMMIT.
_ENDED_IN_TRANSACTION = frozenset({"25P03", "25P04"})
_SESSION_ENDS = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})

# An append that met one of these is decided again with the lock held: each request its own answer.
TO_BE_DECIDED = frozenset({"23505", SEQUENCE_BROKEN, RULES_CHANGED, *ROLLED_BACK})

_CURES: dict[str, tuple[str, bool]] = {
    "42501": (
        "the role lacks a grant: run seriatim init --app-role ROLE as the schema's owner",
        False,
    ),
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
    CANCELLED: ("the statement was cancelled by the server: try again", True),
    "25P03": (
        (
            "this process paused while it held a lock, and the server ended its transaction after "
            "lock_hold_s: nothing of it was stored; try again"
        ),
        True,
    ),
    "40001": ("it was in conflict with other transactions: repeat the whole transaction", True),
    "40P01": ("it was in a deadlock with other transactions: repeat the whole transaction", True),
}


def _cure(error: psycopg.Error) -> tuple[str, bool]:
    """Return what helps against an error, and whether to try again."""
    said = error.diag.message_primary or ""
    if error.sqlstate == "42501" and said.startswith("permission denied for database"):
        cure = (
            "the schema is missing, and the role may not create it: run seriatim init as a role "
            "that may (GRANT CREATE ON DATABASE), or correct schema= in the URL"
        )
        return cure, False
    return cure_of(error.sqlstate)


def _named_object(error: psycopg.Error, schema: str | None) -> str:
    """Say what a right or an object is missing for: names alone, never values."""
    if error.sqlstate not in _NAMING or not (said := error.diag.message_primary):
        return ""
    where = f" (schema {schema})" if schema and "schema" not in said else ""
    return f"{said:.200}{where}; "


def cure_of(state: str | None) -> tuple[str, bool]:
    """Say what helps against an error of this state, and whether to try again."""
    return _CURES.get(state or "", ("", True))


def is_refusal(error: psycopg.Error) -> bool:
    """Tell whether the server itself refused a statement, so that its transaction is rolled back.

    Everything else may arrive after COMMIT was applied: a lost connection, class 08 (a pooler that
    lost its server answers 08P01), a FATAL end of the session (57P01, 57P05), class 58 and unknown
    states, which poolers send in the server's name.
    """
    state = error.sqlstate
    if state in _ENDED_IN_TRANSACTION:
        return True
    severity = error.diag.severity_nonlocalized or error.diag.severity
    if state is None or severity != "ERROR" or state in _UNKNOWN_OUTCOMES:
        return False
    return state[:2] in _REFUSAL_CLASSES or state == "57014"


def is_connection_lost(error: psycopg.Error) -> bool:
    """Tell whether the connection ended: no answer, class 08, or a session that was terminated."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state[:2] == "08" or state in _SESSION_ENDS


def failure(
    error: psycopg.Error, doing: str, *, sent: bool = False, schema: str | None = None
) -> SeriatimError:
    """Explain an error; `sent` says that a commit was under way and may have been applied."""
    state = error.sqlstate
    cure, retryable = _cure(error)
    ambiguous = sent and not is_refusal(error)
    text = f"Postgres failed while {doing}"
    if ambiguous:
        reason = "the connection was lost" if is_connection_lost(error) else "the server failed"
        text += (
            f": {reason} after the request was sent, so it may have been stored; repeat it, an "
            "append with the same keys or event ids"
        )
        retryable = True
    elif cure:
        text += f": {_named_object(error, schema)}{cure}"
    elif is_connection_lost(error):
        text += ": the connection was lost"
    details = {"sqlstate": state, "ambiguous": ambiguous}
    found = BackendFailure(text, details=details, retryable=retryable)
    found.__cause__ = error
    return found
