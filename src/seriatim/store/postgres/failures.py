"""Translate Postgres errors into Seriatim errors, with cause and cure."""

from __future__ import annotations

import psycopg

from seriatim.core.errors import BackendFailure, SeriatimError

SEQUENCE_VIOLATION = "SQ001"
RULES_CHANGED = "SQ002"
LOCK_BUSY = "55P03"
CANCELLED = "57014"  # by statement_timeout, or by hand
# Serialization failure and deadlock: nothing was stored, so the transaction can be repeated.
ROLLED_BACK = frozenset({"40001", "40P01"})

# SQLSTATE classes that mean the server rejected a statement. 08 (connection), 57 (operator
# intervention), 58 (system error), F0 and XX (internal error) are not: the outcome is then unknown.
_REFUSAL_CLASSES = frozenset(
    "0A 0B 20 21 22 23 25 26 27 2B 2D 2F 34 38 39 3B 3D 3F 40 42 44 53 54 55 P0 SQ".split()  # noqa: SIM905 - one line instead of thirty
)
_MISSING_OBJECT = frozenset({"42501", "42P01", "42883", "3F000", "3D000"})
_UNKNOWN_OUTCOMES = frozenset({"40003"})  # statement completion unknown
# The server ended a session inside a transaction, so before it received COMMIT.
_ENDED_IN_TRANSACTION = frozenset({"25P03", "25P04"})
_SESSION_ENDS = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})

# A pooler that was taken for a direct connection has assigned another session.
_STATEMENT_NOT_PREPARED = "26000"

# An append rejected with one of these is repeated on the validated path.
NEEDS_VALIDATED_PATH = frozenset(
    {"23505", SEQUENCE_VIOLATION, RULES_CHANGED, _STATEMENT_NOT_PREPARED, *ROLLED_BACK}
)

_CURES: dict[str, tuple[str, bool]] = {
    "42501": (
        "the role lacks privileges: run seriatim init --app-role ROLE as the schema's owner",
        False,
    ),
    "42P01": ("the log's tables are missing: run seriatim init", False),
    "42883": ("the log's functions are missing or outdated: run seriatim init", False),
    "3F000": ("the log's schema is missing: run seriatim init", False),
    "25006": ("the server is read-only, it may be a standby: connect to the primary", False),
    "53100": ("the database's disk is full: free space, then try again", True),
    "53300": ("the server has no connection left: lower pool_size or raise max_connections", True),
    "28P01": ("the password was rejected: check the URL", False),
    "28000": ("the role may not log in: check the URL", False),
    "3D000": ("the database does not exist: create it, or check the URL", False),
    LOCK_BUSY: (
        "another writer held the log's lock for longer than lock_wait_s: try again, or raise it",
        True,
    ),
    CANCELLED: ("the statement was cancelled by the server: try again", True),
    "25P03": (
        (
            "this process stalled while it held a lock, and the server ended its transaction after "
            "lock_hold_s; nothing was stored: try again"
        ),
        True,
    ),
    "40001": ("serialization failure: repeat the whole transaction", True),
    "40P01": ("deadlock with other transactions: repeat the whole transaction", True),
}


def _find_cure(error: psycopg.Error) -> tuple[str, bool]:
    """Return the cure for an error, and whether to try again."""
    message = error.diag.message_primary or ""
    if error.sqlstate == "42501" and message.startswith("permission denied for database"):
        cure = (
            "the schema does not exist, and the role may not create it: run seriatim init as a "
            "role that may (GRANT CREATE ON DATABASE), or correct schema= in the URL"
        )
        return cure, False
    return find_remedy(error.sqlstate)


def _describe_object(error: psycopg.Error, schema: str | None) -> str:
    """Name the missing object or privilege; such messages contain names, never values."""
    if error.sqlstate not in _MISSING_OBJECT or not (message := error.diag.message_primary):
        return ""
    where = f" (schema {schema})" if schema and "schema" not in message else ""
    return f"{message:.200}{where}; "


def find_remedy(state: str | None) -> tuple[str, bool]:
    """Return the cure for a SQLSTATE, empty if unknown, and whether to try again."""
    return _CURES.get(state or "", ("", True))


def is_refusal(error: psycopg.Error) -> bool:
    """Return True if the server rejected a statement, so that its transaction is rolled back.

    Any other error may arrive after COMMIT was applied: a lost connection, class 08 (a pooler that
    lost its server reports 08P01), a FATAL end of the session (57P01, 57P05), class 58, and unknown
    states, which poolers report on behalf of the server.
    """
    state = error.sqlstate
    if state in _ENDED_IN_TRANSACTION:
        return True
    severity = error.diag.severity_nonlocalized or error.diag.severity
    if state is None or severity != "ERROR" or state in _UNKNOWN_OUTCOMES:
        return False
    return state[:2] in _REFUSAL_CLASSES or state == "57014"


def is_connection_lost(error: psycopg.Error) -> bool:
    """Return True if the connection was lost or the session was terminated."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state[:2] == "08" or state in _SESSION_ENDS


def translate_error(
    error: psycopg.Error, operation: str, *, sent: bool = False, schema: str | None = None
) -> SeriatimError:
    """Return the Seriatim error for a driver error.

    Args:
        error: The driver's error.
        operation: The operation, as it appears in the message after "while".
        sent: Whether a commit was in flight, so that it may have been applied.
        schema: The schema of the log, for the message.

    Returns:
        A `BackendFailure` with the cause and the cure; its detail `ambiguous` says whether the
        operation may have been applied.

    """
    state = error.sqlstate
    cure, retryable = _find_cure(error)
    ambiguous = sent and not is_refusal(error)
    text = f"Postgres failed while {operation}"
    if ambiguous:
        reason = "the connection was lost" if is_connection_lost(error) else "the server failed"
        text += (
            f": {reason} after the request was sent, so it may have been stored; repeat it (an "
            "append with the same keys or event ids)"
        )
        retryable = True
    elif cure:
        text += f": {_describe_object(error, schema)}{cure}"
    elif is_connection_lost(error):
        text += ": the connection was lost: try again"
    elif state is not None:
        text += f": SQLSTATE {state}: see the log of the server"
    details = {"sqlstate": state, "ambiguous": ambiguous}
    translated = BackendFailure(text, details=details, retryable=retryable)
    translated.__cause__ = error
    return translated
