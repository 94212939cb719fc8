"""Commands that are not one append, run once: their twins wait for the first one's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from seriatim.access.stored_responses import IdempotentCommand, Reservation, StoredResponse
from seriatim.api.http import HttpRequest, HttpResponse
from seriatim.api.request_bodies import parse_json_body
from seriatim.api.service import Service
from seriatim.core.canonical import canonical_text, check_json, hash_text
from seriatim.core.errors import InvalidArgument, SeriatimError, TimedOut, ValidationError
from seriatim.core.ids import hash_key, key_problem
from seriatim.core.request import limits_around_payloads

REPLAYED_HEADER = (b"seriatim-replayed", b"true")
_PAUSE_S = 0.05


async def run_once(
    service: Service, request: HttpRequest, raw: bytes, act: Callable[[], Awaitable[HttpResponse]]
) -> HttpResponse:
    """Run an act for the first of its twins; the others get its answer."""
    key = request.header(b"idempotency-key")
    if problem := key_problem(key):
        raise InvalidArgument(f"Idempotency-Key {problem}", details={"argument": "idempotency-key"})
    parts = request.tenant_id, request.caller.subject, request.endpoint, key
    request_hash = await _hash_of(service, request, raw)
    command = IdempotentCommand(request.tenant_id, hash_key(*parts).hex(), request_hash)
    found = await _reserved(service, command)
    if isinstance(found, StoredResponse):
        return HttpResponse(found.status, found.body.encode(), headers=(REPLAYED_HEADER,))
    try:
        response = await act()
    except BaseException:
        await _let_twins_run(service, command, found)
        raise
    if response.storable and len(response.body) <= service.settings.answer_bytes:
        answer = StoredResponse(response.status, response.body.decode())
        await service.run_for_tenant(
            command.tenant_id, service.access.store_response, found, answer
        )
    else:
        await _let_twins_run(service, command, found)
    return response


async def _hash_of(service: Service, request: HttpRequest, raw: bytes) -> str:
    limits = limits_around_payloads(service.limits)

    def made() -> str:
        value = parse_json_body(raw)
        try:
            check_json(value, limits=limits)
        except ValidationError as flaw:
            msg = f"the body cannot be kept: {flaw.location}: {flaw.message}"
            raise InvalidArgument(msg, details={"argument": "the body"}) from None
        return hash_text(canonical_text(value))

    return await service.run_for_tenant(request.tenant_id, made)


async def _reserved(service: Service, command: IdempotentCommand) -> Reservation | StoredResponse:
    """Wait for the right to run, or for the answer; a tenant's commands wait in its own turns."""
    until = asyncio.get_running_loop().time() + service.settings.request_timeout_s
    reserve, at_most = service.access.reserve, service.settings.tenant_answers
    while asyncio.get_running_loop().time() < until:
        found = await service.run_for_tenant(command.tenant_id, reserve, command, at_most)
        if found is not None:
            return found
        await asyncio.sleep(_PAUSE_S)
    raise TimedOut("a request with this Idempotency-Key is still under way")


async def _let_twins_run(service: Service, command: IdempotentCommand, found: Reservation) -> None:
    with suppress(SeriatimError):  # then they may once its time is over
        await service.run_for_tenant(command.tenant_id, service.access.release_reservation, found)
