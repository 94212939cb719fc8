"""Responses of a service, and the errors that they become."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from seriatim.client.connection_pool import NoResponse
from seriatim.core.errors import BackendFailure, LimitExceeded, SeriatimError
from seriatim.wire.problems import CONTENT_TYPE, Problem, error_from_problem

_decode_problem = msgspec.json.Decoder(Problem).decode


class ServiceResponse(msgspec.Struct, frozen=True):
    """A complete response of a service."""

    status: int
    headers: Any
    body: bytes


def send_request(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: bytes | None,
    headers: Mapping[str, str],
) -> ServiceResponse:
    """Send one request and read the whole response.

    Raises:
        NoResponse: The connection broke before the response was complete.
    """
    sent = False
    try:
        connection.request(method, target, body=body, headers=dict(headers))
        sent = True
        response = connection.getresponse()
        return ServiceResponse(response.status, response.headers, response.read())
    except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
        # A kept-alive connection that was closed without a response: a read can be sent again. A
        # write may have been executed; its event ids make sending it again safe.
        raise NoResponse(error, maybe_received=sent and method != "GET") from error
    except (OSError, http.client.HTTPException) as error:
        raise NoResponse(error, maybe_received=sent) from error


def is_retryable(failure: object) -> bool:
    """Return whether an operation that failed this way may succeed when it is retried."""
    return isinstance(failure, BackendFailure | LimitExceeded) and failure.retryable


def retry_delay(answer: ServiceResponse, failure: SeriatimError) -> float:
    """Return the seconds to wait before a retry: from the problem, or else the header."""
    if "retry_after_s" in failure.details:
        return failure.retry_after_s
    seconds = answer.headers.get("retry-after", "")
    return float(seconds) if seconds.isdigit() else 0.0


def error_from_response(answer: ServiceResponse, *, writes: bool) -> SeriatimError:
    """Return the error of a response; `writes` means that the request was not only a read."""
    if answer.headers.get("content-type", "").startswith(CONTENT_TYPE):
        try:
            return error_from_problem(_decode_problem(answer.body))
        except msgspec.MsgspecError:
            pass
    msg = (
        f"status {answer.status} from something that is not a Seriatim service: check the URL, "
        "and proxies between client and service"
    )
    # A proxy in between does not know whether the service executed the request.
    if writes and answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        msg += "; the request may have been executed"
        return BackendFailure(msg, details={"ambiguous": True})
    return BackendFailure(msg, retryable=answer.status in (502, 503, 504))
