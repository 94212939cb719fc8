"""What a service answered, and what is made of an answer that is none, or a refusal."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any

import msgspec

from seriatim.client.connections import Unanswered
from seriatim.core.errors import BackendFailure, LimitExceeded, SeriatimError
from seriatim.wire.problems import CONTENT_TYPE, Problem, error_of

_problem = msgspec.json.Decoder(Problem).decode


class Answer(msgspec.Struct, frozen=True):
    """What a service answered."""

    status: int
    headers: Any
    body: bytes


def exchanged(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: bytes | None,
    headers: Mapping[str, str],
) -> Answer:
    """Send one request and read the whole answer."""
    sent = False
    try:
        connection.request(method, target, body=body, headers=dict(headers))
        sent = True
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
        # A kept connection that was closed before anything came back has done nothing for reads;
        # for a write it may have, which its ids make harmless.
        raise Unanswered(error, sent=sent and method != "GET") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unanswered(error, sent=sent) from error


def may_help(failure: object) -> bool:
    """Tell whether what failed so may succeed when it is asked again at once, or in a while."""
    return isinstance(failure, BackendFailure | LimitExceeded) and failure.retryable


def retry_after(answer: Answer, failure: SeriatimError) -> float:
    """Return how long the service asks to wait: to the millisecond if it says so."""
    if "retry_after_s" in failure.details:
        return failure.retry_after_s
    told = answer.headers.get("retry-after", "")
    return float(told) if told.isdigit() else 0.0


def refusal(answer: Answer, *, acts: bool) -> SeriatimError:
    """Return the error of an answer; `acts` tells that more than reading was asked for."""
    if answer.headers.get("content-type", "").startswith(CONTENT_TYPE):
        try:
            return error_of(_problem(answer.body))
        except msgspec.MsgspecError:
            pass
    msg = f"something that is no Seriatim service answered with status {answer.status}"
    if acts and answer.status >= 500:  # noqa: PLR2004 - what stands before it knows nothing
        msg += "; it may have been done"
        return BackendFailure(msg, details={"ambiguous": True})
    return BackendFailure(msg, retryable=answer.status in (502, 503, 504))
