"""Appends on their way to a service: sent until each is decided."""

from __future__ import annotations

import time
from collections.abc import Sequence

from seriatim.client.answers import may_help
from seriatim.client.appends import APPENDS, Again, answers_of, together
from seriatim.client.http import Doubt, Http, pauses
from seriatim.core.errors import BackendFailure, SeriatimError
from seriatim.core.event import AppendResult
from seriatim.core.request import Request
from seriatim.store.port import Outcome

# What says nothing about an append: its earlier tries may have been stored.
_UNDECIDED = frozenset(
    {"backend_failure", "forbidden", "limit_exceeded", "timeout", "unauthorized"}
)


def send(http: Http, group: Sequence[Request], timeout: float | None = None) -> list[Outcome]:
    """Send appends until each has an answer that another try would not change.

    Their ids make that safe: what was stored by an earlier try is answered, not stored again.
    """
    left = http.timeout_s if timeout is None else timeout
    known_position = http.known_position
    until = time.monotonic() + left
    outcomes: dict[int, Outcome] = {}
    before = {n: one.packed for n, one in enumerate(group) if isinstance(one.packed, Again)}
    in_doubt = {index for index, packed in before.items() if packed.doubt}
    todo = list(range(len(group)))
    if pause := min(left, max([packed.wait_s for packed in before.values()], default=0.0)):
        time.sleep(pause)
        left = until - time.monotonic()
    for pause in pauses():
        doubt = Doubt()
        outcomes |= zip(todo, _tried(http, [group[n] for n in todo], left, doubt), strict=True)
        if doubt.earlier:
            in_doubt.update(todo)
        todo = [index for index in todo if may_help(outcomes[index])]
        wait = max([pause, *(_told_to_wait(outcomes[index]) for index in todo)])
        left = until - time.monotonic() - wait
        if not todo or left <= 0:
            break
        in_doubt.update(index for index in todo if _ambiguous(outcomes[index]))
        time.sleep(wait)
    for index in in_doubt:
        _claim_own(outcomes[index], group[index], known_position)
    http.learn_positions(outcomes.values())
    return [_known(outcomes[index], index in in_doubt) for index in range(len(group))]


def _claim_own(outcome: Outcome, request: Request, known_position: int) -> None:
    """Call a receipt no replay when an earlier attempt of this call stored the append.

    Ids that this call made are stored by nobody else. Where the caller gave every id, an append
    after all positions known when the call began is taken for its own.
    """
    if not isinstance(outcome, AppendResult) or not outcome.replayed:
        return
    stored = [record.event_id for record in outcome.records]
    made = [
        (event.event_id, found)
        for event, found in zip(request.events, stored, strict=False)
        if not event.given_id
    ]
    if made:
        own = len(stored) == len(request.events) and all(mine == found for mine, found in made)
    else:
        own = outcome.first_position > known_position
    outcome.replayed = not own


def _tried(http: Http, group: Sequence[Request], seconds: float, doubt: Doubt) -> list[Outcome]:
    tenant_id = group[0].tenant_id
    try:
        raw = http.post(
            APPENDS, together(group), tenant_id=tenant_id, timeout_s=seconds, doubt=doubt
        )
    except SeriatimError as error:
        return [error] * len(group)
    return answers_of(group, raw)


def _known(outcome: Outcome, in_doubt: bool) -> Outcome:
    """Return what is known of an append, of which an earlier try may have been stored."""
    if not in_doubt or not isinstance(outcome, SeriatimError) or outcome.code not in _UNDECIDED:
        return outcome
    met = f"{outcome.code}, {outcome.message}"
    msg = f"an earlier try may have been stored; the last one met {met}"
    details = {**outcome.details, "ambiguous": True}
    return BackendFailure(msg, details=details, retryable=outcome.retryable)


def _ambiguous(outcome: Outcome) -> bool:
    return isinstance(outcome, SeriatimError) and bool(outcome.details.get("ambiguous"))


def _told_to_wait(outcome: Outcome) -> float:
    return outcome.retry_after_s if isinstance(outcome, SeriatimError) else 0.0
