"""Errors over HTTP: status codes, and conversion of errors to problems (RFC 9457) and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from seriatim.core.errors import ALL_ERRORS, BackendFailure, LimitExceeded, SeriatimError

CONTENT_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:seriatim:problem:"

STATUS_BY_CODE: Mapping[str, int] = {
    "empty_append": 400,
    "invalid_argument": 400,
    "invalid_event": 400,
    "invalid_query": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "idempotency_conflict": 409,
    "event_sequence_invalid": 409,
    "conditional_append_conflict": 409,
    "conflict": 409,
    "idempotency_key_reuse": 409,
    "lease_lost": 409,
    "log_identity_changed": 409,
    "projection_failed": 409,
    "projection_out_of_date": 409,
    "limit_exceeded": 413,
    "schema_violation": 422,
    "pii_policy_violation": 422,
    "backend_failure": 503,
    "projection_timeout": 504,
    "timeout": 504,
}
TOO_MANY_REQUESTS = 429  # for limits that pass with time: a quota, a full queue
_BY_CODE: Mapping[str, type[SeriatimError]] = {kind.code: kind for kind in ALL_ERRORS}


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every error response (RFC 9457)."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    details: dict[str, Any] = {}
    retryable: bool = False
    request_id: str = ""


def status_for_error(error: SeriatimError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, LimitExceeded) and error.retryable:
        return TOO_MANY_REQUESTS
    return STATUS_BY_CODE[error.code]


def problem_from_error(error: SeriatimError, request_id: str = "") -> Problem:
    """Return the problem for an error."""
    status = status_for_error(error)
    return Problem(
        type=TYPE_PREFIX + error.code,
        title=HTTPStatus(status).phrase,
        status=status,
        code=error.code,
        detail=_encodable(error.message),
        details=_encodable(error.details),
        retryable=error.retryable,
        request_id=request_id,
    )


def _encodable(value: Any) -> Any:
    """Return a value that can be encoded: a message may quote an unpaired surrogate."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    return value


def error_from_problem(problem: Problem) -> SeriatimError:
    """Return the error for a problem; an unknown code becomes `BackendFailure`."""
    kind = _BY_CODE.get(problem.code, BackendFailure)
    return kind(problem.detail, details=problem.details, retryable=problem.retryable)
