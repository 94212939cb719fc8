"""The exit codes of all commands, their meanings, and the exit code of each error."""

from __future__ import annotations

from typing import Final

from seriatim.core.errors import SeriatimError

SUCCESS: Final = 0
FOUND_PROBLEMS: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
BACKEND: Final = 4
CONFLICT: Final = 5
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

MEANINGS: dict[int, str] = {
    SUCCESS: "success",
    FOUND_PROBLEMS: (
        "completed, but found problems "
        "(verify, audit, doctor, import, reconcile, project, registry, dlq, demo)"
    ),
    USAGE: "invalid command line: an option, a URL, JSON or a query",
    REFUSED: "refused by the log: an invalid event, the guard, a limit, or not found",
    BACKEND: "the store failed or timed out; a retry may succeed",
    CONFLICT: "conflict: the log has changed, or the content differs; read again and retry",
    INTERRUPTED: "stopped by Ctrl-C",
    BROKEN_PIPE: "the reader of the output closed the pipe",
}
"""The meaning of each exit code; `docs/reference/cli.md` repeats the table."""

_CODES: dict[str, int] = {
    "invalid_argument": USAGE,
    "invalid_query": USAGE,
    "backend_failure": BACKEND,
    "timeout": BACKEND,
    "event_sequence_invalid": CONFLICT,
    "conditional_append_conflict": CONFLICT,
    "idempotency_conflict": CONFLICT,
    "idempotency_key_reuse": CONFLICT,
    "projection_failed": FOUND_PROBLEMS,
    "conflict": CONFLICT,
    "lease_lost": CONFLICT,
}

_ADVICE: dict[str, str] = {
    "event_sequence_invalid": "read the stream again and retry",
    "conditional_append_conflict": "query the context again and retry",
    "idempotency_conflict": "use a new key or event id for a new event",
    "idempotency_key_reuse": "use a new key for a different request",
    "pii_policy_violation": "remove the value, or store a reference to it",
    "log_identity_changed": "check which events the consumer has processed, then reset its cursor",
}


def exit_code(error: SeriatimError) -> int:
    """Return the exit code of a command that fails with `error`."""
    return _CODES.get(error.code, REFUSED)


def suggest_cure(error: SeriatimError) -> str:
    """Return a hint on how to resolve `error`; empty if its message already contains one."""
    if error.details.get("ambiguous"):
        return "it may have been stored: repeat it with the same keys or event ids"
    if "there is no log" in error.message:
        return "seriatim init creates one"
    if error.code in _ADVICE:
        return _ADVICE[error.code]
    return "try again" if error.retryable and "try again" not in error.message else ""


def format_exit_codes() -> str:
    """Return the table of exit codes as Markdown, for the end of each help page."""
    rows = (f"- **{code}** {meaning}" for code, meaning in MEANINGS.items())
    return "\n\n".join(("Exit codes:", *rows))
