"""Commands that are not one append, run once: their twins wait for the first one's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from seriatim.access.answers import Answer, Command, Reserved
from seriatim.api.bodies import parsed
from seriatim.api.http import Request, Response
from seriatim.api.service import Service
from seriatim.core.canonical import canonical_text, check_json, text_hash
from seriatim.core.errors import Flaw, InvalidArgument, SeriatimError, TimedOut
from seriatim.core.ids import hash_key, key_problem
from seriatim.core.request import around_payloads

REPLAYED = (b"seriatim-replayed", b"true")
_PAUSE_S = 0.05


async def once(
    service: Service, request: Request, raw: bytes, act: Callable[[], Awaitable[Response]]
) -> Response:
    """Run an act for the first of its twins; the others get its answer."""
    key = request.header(b"idempotency-key")
    if problem := key_problem(key):
        raise InvalidArgument(f"Idempotency-Key {problem}", details={"argument": "idempotency-key"})
    parts = request.tenant_id, request.caller.subject, request.endpoint, key
    request_hash = await _hash_of(service, request, raw)
    command = Command(request.tenant_id, hash_key(*parts).hex(), request_hash)
    found = await _reserved(service, command)
    if isinstance(found, Answer):
        return Response(found.status, found.body.encode(), headers=(REPLAYED,))
    try:
        response = await act()
    except BaseException:
        await _let_twins_run(service, command, found)
        raise
    if response.lasting and len(response.body) <= service.serving.answer_bytes:
        answer = Answer(response.status, response.body.decode())
        await service.run_for(command.tenant_id, service.access.keep, found, answer)
    else:
        await _let_twins_run(service, command, found)
    return response


async def _hash_of(service: Service, request: Request, raw: bytes) -> str:
    limits = around_payloads(service.limits)

    def made() -> str:
        value = parsed(raw)
        try:
            check_json(value, limits=limits)
        except Flaw as flaw:
            msg = f"the body cannot be kept: {flaw.where}: {flaw.message}"
            raise InvalidArgument(msg, details={"argument": "the body"}) from None
        return text_hash(canonical_text(value))

    return await service.run_for(request.tenant_id, made)


async def _reserved(service: Service, command: Command) -> Reserved | Answer:
    """Wait for the right to run, or for the answer; a tenant's commands wait in its own turns."""
    until = asyncio.get_running_loop().time() + service.serving.request_timeout_s
    reserve, at_most = service.access.reserve, service.serving.tenant_answers
    while asyncio.get_running_loop().time() < until:
        found = await service.run_for(command.tenant_id, reserve, command, at_most)
        if found is not None:
            return found
        await asyncio.sleep(_PAUSE_S)
    raise TimedOut("a request with this Idempotency-Key is still under way")


async def _let_twins_run(service: Service, command: Command, found: Reserved) -> None:
    with suppress(SeriatimError):  # then they may once its time is over
        await service.run_for(command.tenant_id, service.access.give_up, found)
