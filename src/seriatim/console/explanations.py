"""Why: dry runs of appends, and receipts by idempotency key or command."""

from __future__ import annotations

from typing import Any

import msgspec

from seriatim.api.http import HttpResponse
from seriatim.console.consumers import read_optional
from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.console.renderer import format_json
from seriatim.core.canonical import parse_strict_json
from seriatim.core.decision_graph import TRACE_STREAM_TYPE
from seriatim.core.errors import InvalidArgument, NotFound, SeriatimError

_SERVER_ERROR = 500  # from this status on, an error is not about the form
_EVENTS_MAX = 100  # of one receipt
_EXAMPLE = """{
  "events": [
    {"event_type": "seat.reserved", "payload": {"seat": "12A"}, "stream": ["show", "s-1"]}
  ],
  "idempotency_key": "order-7"
}"""
# What each check of an append refuses, in the order of the checks.
_CHECKS = {
    "arguments": "conditions, command and number of events",
    "envelope": "fields of the events",
    "json": "payloads are JSON objects",
    "schema": "declared types and schemas",
    "limits": "sizes",
    "guard": "secrets and personal data",
    "command": "key of the command",
    "idempotency": "idempotency keys and event ids",
    "conditions": "expected stream or context",
    "sequence": "sequence numbers, open streams",
}
# Details of problems that are shown under another name.
_DETAIL_NAMES = {
    "index": "event number, from 0",
    "fields": "differing fields",
    "expected": "expected",
    "actual": "actual",
    "rule": "rule of the guard",
    "path": "path",
}
# Fields that a response omits if they are empty.
_EXPLANATION: dict[str, Any] = {
    "problem": None,
    "first_position": None,
    "stream_seqs": [],
    "response": None,
    "id_mismatch": [],
    "events": [],
}
# The ways to name a stored append; the first parameter of each is required.
_LOOKUPS = (("idempotency_key", "producer_id"), ("key", "endpoint", "actor"))


class FormProblem(msgspec.Struct, frozen=True):
    """An error about the values of a form, displayed next to it."""

    status: int
    code: str
    detail: str
    details: dict[str, Any]


async def show_why(page: ConsolePage) -> ConsoleResponse:
    """Show the forms, and the receipt that the address names."""
    receipt, problem, draft = None, None, _EXAMPLE
    try:
        draft = await _find_refused_request(page) or _EXAMPLE
        receipt = await _find_receipt(page)
    except (InvalidArgument, NotFound) as error:
        problem = _make_problem(page, error)
    status = 200 if problem is None else problem.status
    return await _render(page, status, receipt=receipt, receipt_problem=problem, example=draft)


async def _find_refused_request(page: ConsolePage) -> str | None:
    """Return the text of the refused append that the address names, or None if it names none.

    Raises:
        NotFound: This process does not keep that append: it is too old, or another one refused it.
    """
    if not (refusal_id := page.params.get("refusal")):
        return None
    for refusal in (await page.get("/v1/refusals"))["refusals"]:
        if refusal["id"] == refusal_id and refusal["request"] is not None:
            return format_json(parse_strict_json(refusal["request"]))
    msg = "this process does not have that refused append: each keeps the last ones it refused"
    raise NotFound(msg, details={"refusal": refusal_id[:80]})


async def explain(page: ConsolePage) -> ConsoleResponse:
    """Explain the append request of the form; nothing is stored."""
    try:
        explanation = await page.post("/v1/explain", _make_body(page))
    except SeriatimError as error:
        problem = _make_problem(page, error)
        if problem.status >= _SERVER_ERROR:
            raise
        return await _render(page, problem.status, explain_problem=problem)
    steps = [{"index": None} | step for step in explanation["steps"]]
    return await _render(page, 200, explanation=_EXPLANATION | explanation | {"steps": steps})


async def _render(page: ConsolePage, status: int, **values: object) -> HttpResponse:
    refusals = await read_optional(page, "/v1/refusals") if page.can("append") else None
    defaults: dict[str, Any] = {
        "refused": refusals,
        "receipt": None,
        "receipt_problem": None,
        "explanation": None,
        "explain_problem": None,
        "example": _EXAMPLE,
        "checks": _CHECKS,
        "names": _DETAIL_NAMES,
        "events_max": _EVENTS_MAX,
    }
    return await page.render("why.html", status=status, **(defaults | values))


def _make_problem(page: ConsolePage, error: SeriatimError) -> FormProblem:
    problem = page.app.service.problem(error, page.request.request_id)
    return FormProblem(problem.status, problem.code, problem.detail, problem.details)


def _make_body(page: ConsolePage) -> Any:
    """Return the pasted request, byte for byte unless an actor is added to its events.

    Decoding and encoding it again could hide mistakes that the log refuses, such as repeated keys.

    Raises:
        InvalidArgument: The text is not JSON, or not an object with a list of events.
    """
    text = page.form.get("request", "").encode()
    try:
        body = msgspec.json.decode(text)
        if not page.form.get("actor"):
            return msgspec.Raw(text)
        for event in body["events"]:
            _set_actor(event, page.form["actor"])
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        msg = "paste the JSON body of an append: an object with a list of events"
        raise InvalidArgument(msg, details={"argument": "request"}) from None
    return body


def _set_actor(event: Any, actor_id: str) -> None:
    """Set the actor as the service does for the events of a token with this subject."""
    if not isinstance(event, dict):
        return  # left as it is, so that the dry run reports the invalid event
    if event.get("actor_type") is None and event.get("actor_id") is None:
        stream = event.get("stream") or [event.get("stream_type")]
        kind = "system" if stream[0] == TRACE_STREAM_TYPE else "service_principal"
        event |= {"actor_type": kind, "actor_id": actor_id}


async def _find_receipt(page: ConsolePage) -> Any:
    """Return the append that the address names, or None if it names none."""
    for fields in _LOOKUPS:
        params = {name: page.params.get(name) for name in fields}
        if params[fields[0]]:
            receipt = await page.get("/v1/receipts", **params)
            return {"request_hash": None, "response": None} | receipt
    return None


ROUTES: tuple[PageRoute, ...] = (
    PageRoute(method="GET", path="/why", show=show_why, title="Why?"),
    PageRoute(method="POST", path="/why", show=explain),
)
