"""Appends on their way to a service: sent until each is decided."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from seriatim.client.appends import outcome
from seriatim.client.http import Http, pauses
from seriatim.core.errors import BackendFailure, LimitExceeded, SeriatimError
from seriatim.core.request import Request
from seriatim.store.port import Outcome
from seriatim.wire import shapes

_outcomes = msgspec.json.Decoder(shapes.Outcomes).decode


def send(http: Http, group: Sequence[Request], timeout: float | None = None) -> list[Outcome]:
    """Send appends until each has an answer that another try would not change.

    Their ids make that safe: what was stored by an earlier try is answered, not stored again.
    """
    seconds = http.timeout_s if timeout is None else timeout
    until = time.monotonic() + seconds
    outcomes = _tried(http, group, seconds)
    ambiguous: set[int] = set()
    for pause in pauses():
        again = [index for index, one in enumerate(outcomes) if _may_help(one)]
        ambiguous |= {index for index in again if _ambiguous(outcomes[index])}
        wait = max([pause, *(_told_to_wait(outcomes[index]) for index in again)])
        left = until - time.monotonic() - wait
        if not again or left <= 0:
            break
        time.sleep(wait)
        for index, one in zip(again, _tried(http, [group[n] for n in again], left), strict=True):
            outcomes[index] = one
    for index in ambiguous:
        one = outcomes[index]
        if isinstance(one, SeriatimError) and one.retryable:
            one.details["ambiguous"] = True
    return outcomes


def _tried(http: Http, group: Sequence[Request], seconds: float) -> list[Outcome]:
    body = {"appends": [msgspec.Raw(request.packed) for request in group]}
    try:
        raw = http.post("/v1/appends", body, tenant_id=group[0].tenant_id, timeout_s=seconds)
        found = _outcomes(raw).outcomes
    except msgspec.MsgspecError as error:
        return [unknown_shape(error)] * len(group)
    except SeriatimError as error:
        return [error] * len(group)
    return [outcome(request, answer) for request, answer in zip(group, found, strict=True)]


def _may_help(outcome: Outcome) -> bool:
    """Tell whether an append may succeed when it is sent again."""
    return isinstance(outcome, BackendFailure | LimitExceeded) and outcome.retryable


def _ambiguous(outcome: Outcome) -> bool:
    return isinstance(outcome, SeriatimError) and bool(outcome.details.get("ambiguous"))


def _told_to_wait(outcome: Outcome) -> float:
    seconds = outcome.details.get("retry_after_s") if isinstance(outcome, SeriatimError) else 0
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def unknown_shape(error: Exception) -> BackendFailure:
    """Make the error for an answer of another version, or of something else."""
    msg = f"the service answered in a shape that this version does not know: {error}"
    return BackendFailure(msg, retryable=False)
