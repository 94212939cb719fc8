"""Authentication of callers, and the rules that their rights impose on appends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec

from seriatim.access.rights import ANONYMOUS, Caller
from seriatim.access.store import AccessStore
from seriatim.access.tokens import invalid_token_error, is_token
from seriatim.api.http import HttpRequest
from seriatim.core.canonical import canonical_text, hash_text
from seriatim.core.errors import Forbidden, IdempotencyConflict, InvalidArgument, Unauthorized
from seriatim.core.event import EventRecord, NewEvent
from seriatim.core.kinds import PROFILE_KINDS
from seriatim.core.request import Command, ExpectedContext
from seriatim.wire.messages import AddedFields, WireCommand

TOKEN_CACHE_S = 2.0  # a revoked token is accepted for at most this long
_REFUSED_CACHE_S = 1.0
_CACHE_MAX = 10_000
USE_WRITE_INTERVAL_S = 60.0  # between two writes of the time at which a token was last used


class Authenticator:
    """Look up tokens for one process.

    Args:
        access: The store of tokens.
        run: Runs a call of the store in a thread.
    """

    def __init__(self, access: AccessStore, run: Callable[..., Awaitable[Any]]) -> None:
        self._access = access
        self._run = run
        # Tokens and the ids of sessions have separate entries: an id is no secret, and must not
        # be accepted in place of a token.
        self._cache: dict[str, tuple[Caller, float]] = {}
        self._sessions: dict[str, tuple[Caller, float]] = {}
        self._refused: dict[bytes, float] = {}
        self._used: dict[str, float] = {}  # time of last use by token id, until it is written
        self._written: dict[str, float] = {}  # time of the last write by token id
        self._lookups: dict[str, asyncio.Task[Caller]] = {}

    async def authenticate(self, token: str) -> Caller:
        """Return the caller that a token names.

        A string that is no token, or was refused a moment ago, is not looked up.

        Raises:
            Unauthorized: The token is unknown, revoked or expired.
        """
        cached = self._cache.get(token)
        if cached is not None and (now := time.monotonic()) < cached[1]:
            self._used[cached[0].token_id] = now
            return cached[0]
        if not is_token(token) or self._refused.get(_hash(token), 0.0) > time.monotonic():
            raise invalid_token_error()
        lookup = self._lookups.get(token)
        if lookup is None:
            find = partial(self._access.authenticate, token)
            lookup = self._lookups[token] = asyncio.create_task(
                self._look_up(token, find, self._cache)
            )
            lookup.add_done_callback(lambda _: self._lookups.pop(token))
        # Requests with the same token share a lookup: one that is cancelled must not end it.
        return await asyncio.shield(lookup)

    async def authenticate_session(self, token_id: str) -> Caller:
        """Return the caller of a session, by the id of the token that it was opened with.

        Raises:
            Unauthorized: The token is revoked or expired.
        """
        cached = self._sessions.get(token_id)
        if cached is not None and (now := time.monotonic()) < cached[1]:
            self._used[token_id] = now
            return cached[0]
        if self._refused.get(_hash(token_id), 0.0) > time.monotonic():
            raise invalid_token_error()
        find = partial(self._access.authenticate_id, token_id)
        return await self._look_up(token_id, find, self._sessions)

    async def write_uses(self, *, all_tokens: bool = False) -> None:
        """Write the times at which tokens were last used.

        Args:
            all_tokens: Write all of them, as at shutdown; else each at most once a minute.
        """
        now = time.monotonic()
        due = {
            token_id: used
            for token_id, used in self._used.items()
            if all_tokens
            or now - self._written.get(token_id, float("-inf")) >= USE_WRITE_INTERVAL_S
        }
        if not due:
            return
        for token_id in due:
            del self._used[token_id]
        if len(self._written) >= _CACHE_MAX:
            self._written = {}
        self._written |= dict.fromkeys(due, now)
        ages = {token_id: now - used for token_id, used in due.items()}
        await self._run(self._access.mark_used, ages)

    async def _look_up(
        self,
        token: str,
        find: Callable[[], tuple[Caller, int | None]],
        cache: dict[str, tuple[Caller, float]],
    ) -> Caller:
        """Look up a token or session, and cache the result for at most `TOKEN_CACHE_S`."""
        try:
            caller, remaining_us = await self._run(find)
        except Unauthorized:
            if len(self._refused) >= _CACHE_MAX:
                self._refused = {}
            self._refused[_hash(token)] = time.monotonic() + _REFUSED_CACHE_S
            raise
        if len(cache) >= _CACHE_MAX:
            cache.clear()
        cached_s = (
            TOKEN_CACHE_S if remaining_us is None else min(TOKEN_CACHE_S, remaining_us / 1_000_000)
        )
        now = time.monotonic()
        cache[token] = caller, now + cached_s
        self._used[caller.token_id] = now
        result: Caller = caller
        return result


def _hash(token: str) -> bytes:
    return sha256(token.encode()).digest()


# Actor types that a service may give itself; any other needs the right act_as.
_SERVICE_ACTOR_TYPES = frozenset({"service_principal", "system", "agent"})


def set_actor(caller: Caller, events: list[NewEvent]) -> tuple[list[NewEvent], AddedFields | None]:
    """Set the caller as the actor of events without one.

    Returns:
        The events, and the fields that were added to them, or None.

    Raises:
        Forbidden: An event names another actor, and the caller lacks the right `act_as`.
    """
    if caller.subject == ANONYMOUS:
        return events, None
    updated: list[NewEvent] = []
    added = None
    for event in events:
        if event.actor_type is None and event.actor_id is None:
            actor_type = _choose_actor_type(event.stream)
            added = AddedFields(actor_type, caller.subject)
            updated.append(
                msgspec.structs.replace(event, actor_type=actor_type, actor_id=caller.subject)
            )
            continue
        is_own = event.actor_id == caller.subject and event.actor_type in _SERVICE_ACTOR_TYPES
        if not is_own and "act_as" not in caller.rights:
            raise _act_as_error()
        updated.append(event)
    return updated, added


def _choose_actor_type(stream: Any) -> str:
    """Return the actor type of a service in a stream, which is not validated yet."""
    if isinstance(stream, tuple) and stream and isinstance(stream[0], str):
        profile_kind = PROFILE_KINDS.get(stream[0])
        if profile_kind is not None and "service_principal" not in profile_kind.actor_types:
            return "system"
    return "service_principal"


def _act_as_error() -> Forbidden:
    msg = "an actor other than the token's own needs the right act_as"
    return Forbidden(msg, details={"right": "act_as"})


def confine_condition(caller: Caller, condition: Any) -> Any:
    """Restrict the query of a condition to events that the caller may read."""
    if not isinstance(condition, ExpectedContext):
        return condition
    caller.require("read")
    return msgspec.structs.replace(condition, query=caller.restrict_query(condition.query))


def make_command(
    request: HttpRequest,
    wire_command: WireCommand | None,
    value: Any,
    part: str,
    endpoint: str | None = None,
) -> Command | None:
    """Return the command of an append, from the header Idempotency-Key or from the body.

    Args:
        request: The request.
        wire_command: The command in the body.
        value: The JSON value that duplicates must repeat.
        part: Distinguishes several appends under one header.
        endpoint: The endpoint of the command; None is that of the request.

    Raises:
        InvalidArgument: Both are given.
        Forbidden: The command names another actor without the right `act_as`.
    """
    key = request.header(b"idempotency-key")
    if wire_command is not None:
        if key is not None:
            msg = "send the header Idempotency-Key or a command, not both"
            raise InvalidArgument(msg, details={"argument": "command"})
        if wire_command.actor != request.caller.subject and "act_as" not in request.caller.rights:
            raise _act_as_error()
        return Command(**msgspec.structs.asdict(wire_command))
    if key is None:
        return None
    return Command(
        actor=request.caller.subject,
        endpoint=request.endpoint if endpoint is None else endpoint,
        key=key + part,
        request=value,
    )


def check_readable(
    caller: Caller, events: Sequence[NewEvent], records: Sequence[EventRecord]
) -> None:
    """Check that the caller may see the records of an earlier append.

    Raises:
        Forbidden: The caller may not read all of them, and did not send the same events.
    """
    if _can_read_all(caller) or all(
        "read" in caller.rights and caller.can_read(record.event_type) for record in records
    ):
        return
    if len(records) == len(events) and all(map(_has_same_contents, records, events)):
        return
    raise Forbidden("this token may not read the events stored under this key or id")


def _has_same_contents(record: EventRecord, event: NewEvent) -> bool:
    payload_hash = hash_text(canonical_text(event.payload))
    return record.event_type == event.event_type and record.payload_hash == payload_hash


def redact_conflict(caller: Caller, error: IdempotencyConflict) -> IdempotencyConflict:
    """Remove the differing fields from a conflict unless the caller may read every event."""
    if _can_read_all(caller):
        return error
    msg = "other contents are stored under this key or event id"
    details = {"index": error.details["index"]} if "index" in error.details else {}
    return IdempotencyConflict(msg, details=details)


def _can_read_all(caller: Caller) -> bool:
    return "read" in caller.rights and caller.types is None
