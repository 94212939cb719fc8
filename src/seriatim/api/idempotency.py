"""Idempotency keys of requests that are not one append.

Concurrent duplicates run once and receive the same response. A single append needs none of this:
its command record is stored with its events.
"""

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
_POLL_S = 0.05  # the request that holds a key may run in another process


async def run_once(
    service: Service, request: HttpRequest, raw: bytes, run: Callable[[], Awaitable[HttpResponse]]
) -> HttpResponse:
    """Run a request once per idempotency key; duplicates receive the stored response.

    A response that fails, or may not be stored, releases the key: a duplicate runs again.

    Args:
        service: The service.
        request: The request, with the header Idempotency-Key.
        raw: The body, which duplicates must repeat.
        run: Runs the request.

    Raises:
        InvalidArgument: The key or the body cannot be stored.
        IdempotencyKeyReuse: The key belongs to a request with another body.
        TimedOut: A request with this key is still in progress.
    """
    key = request.header(b"idempotency-key")
    if problem := key_problem(key):
        raise InvalidArgument(f"Idempotency-Key {problem}", details={"argument": "idempotency-key"})
    key_parts = request.tenant_id, request.caller.subject, request.endpoint, key
    request_hash = await _hash_body(service, request, raw)
    command = IdempotentCommand(request.tenant_id, hash_key(*key_parts).hex(), request_hash)
    reservation = await _reserve(service, command)
    if isinstance(reservation, StoredResponse):
        return HttpResponse(
            reservation.status, reservation.body.encode(), headers=(REPLAYED_HEADER,)
        )
    try:
        response = await run()
    except BaseException:  # a cancelled request too must not block its duplicates
        await _release(service, command, reservation)
        raise
    if response.storable and len(response.body) <= service.settings.answer_bytes:
        stored = StoredResponse(response.status, response.body.decode())
        await service.run_for_tenant(
            command.tenant_id, service.access.store_response, reservation, stored
        )
    else:
        await _release(service, command, reservation)
    return response


async def _hash_body(service: Service, request: HttpRequest, raw: bytes) -> str:
    limits = limits_around_payloads(service.limits)

    def compute() -> str:
        value = parse_json_body(raw)
        try:
            check_json(value, limits=limits)
        except ValidationError as error:
            msg = f"the body cannot be stored: {error.location}: {error.message}"
            raise InvalidArgument(msg, details={"argument": "the body"}) from None
        # The canonical text, so that blanks and the order of keys make no difference.
        return hash_text(canonical_text(value))

    return await service.run_for_tenant(request.tenant_id, compute)


async def _reserve(service: Service, command: IdempotentCommand) -> Reservation | StoredResponse:
    """Reserve the key, or wait for the response of the request that holds it."""
    deadline = asyncio.get_running_loop().time() + service.settings.request_timeout_s
    reserve, at_most = service.access.reserve, service.settings.tenant_answers
    while asyncio.get_running_loop().time() < deadline:
        reservation = await service.run_for_tenant(command.tenant_id, reserve, command, at_most)
        if reservation is not None:
            return reservation
        await asyncio.sleep(_POLL_S)
    raise TimedOut("a request with this Idempotency-Key is still in progress: try again")


async def _release(service: Service, command: IdempotentCommand, reservation: Reservation) -> None:
    with suppress(SeriatimError):  # the reservation expires by itself
        await service.run_for_tenant(
            command.tenant_id, service.access.release_reservation, reservation
        )
