"""What a command's exit code says, as one table that the help shows and the errors follow."""

from __future__ import annotations

from typing import Final

from seriatim.core.errors import SeriatimError

DONE: Final = 0
FOUND_PROBLEMS: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
BACKEND: Final = 4
CONFLICT: Final = 5
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

MEANINGS: dict[int, str] = {
    DONE: "done",
    FOUND_PROBLEMS: (
        "done, and it found problems "
        "(verify, audit, doctor, import, reconcile, project, registry, dlq, demo)"
    ),
    USAGE: "the command line is wrong: an option, a URL, JSON, a query",
    REFUSED: "the log refused it: a shape, a guard, a limit, nothing there",
    BACKEND: "the store failed or took too long: trying again may help",
    CONFLICT: "somebody was first, or the content differs: read again, then decide anew",
    INTERRUPTED: "stopped by Ctrl-C",
    BROKEN_PIPE: "the reader of a pipe went away",
}

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
    "event_sequence_invalid": "read the stream again and decide anew",
    "conditional_append_conflict": "query the context again and decide anew",
    "idempotency_conflict": "use a new key or event id for a new event",
    "idempotency_key_reuse": "use a new key for another request",
    "pii_policy_violation": "leave the value out, or store a reference to it",
    "log_identity_changed": "check what the consumer has seen, then reset its cursor",
}


def exit_code(error: SeriatimError) -> int:
    """Return the code that an error ends a command with."""
    return _CODES.get(error.code, REFUSED)


def advice(error: SeriatimError) -> str:
    """Say what to do about an error, where its message does not say it already."""
    if error.details.get("ambiguous"):
        return "it may be stored: repeat it with the same keys or event ids"
    if "there is no log" in error.message:
        return "seriatim init makes one"
    if error.code in _ADVICE:
        return _ADVICE[error.code]
    return "try again" if error.retryable and "try again" not in error.message else ""


def as_help() -> str:
    """Return the table as the end of the help."""
    rows = (f"- **{code}** {meaning}" for code, meaning in MEANINGS.items())
    return "\n\n".join(("Exit codes:", *rows))
