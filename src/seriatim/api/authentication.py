"""Who calls: tokens are looked up once for all that come with them, and known for a moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

from seriatim.access.rights import Caller
from seriatim.access.store import AccessStore
from seriatim.access.tokens import invalid_token_error, is_token
from seriatim.core.errors import Unauthorized

TOKEN_CACHE_S = 2.0  # how long a token is taken for what it was: after that, revoking it has worked
_REFUSED_S = 1.0  # and for what it was not
_KNOWN_MAX = 10_000
USE_WRITE_INTERVAL_S = 60.0  # how often it is kept when a token was used


class Authenticator:
    """The tokens that one process knows; `run` waits for the access store in a thread."""

    def __init__(self, access: AccessStore, run: Callable[..., Awaitable[Any]]) -> None:
        self._access = access
        self._run = run
        self._known: dict[str, tuple[Caller, float]] = {}
        self._refused: dict[bytes, float] = {}
        self._used: dict[str, float] = {}  # when each token was used, until that is kept
        self._kept: dict[str, float] = {}  # and when it was kept
        self._asking: dict[str, asyncio.Task[Caller]] = {}

    async def authenticate(self, token: str) -> Caller:
        """Return who holds a token, or refuse it; what cannot be one costs no look."""
        known = self._known.get(token)
        if known is not None and (now := time.monotonic()) < known[1]:
            self._used[known[0].token_id] = now
            return known[0]
        if not is_token(token) or self._refused.get(_hash(token), 0.0) > time.monotonic():
            raise invalid_token_error()
        asking = self._asking.get(token)
        if asking is None:
            asking = self._asking[token] = asyncio.create_task(self._ask(token))
            asking.add_done_callback(lambda _: self._asking.pop(token))
        return await asyncio.shield(asking)

    async def write_uses(self, *, all_tokens: bool = False) -> None:
        """Write when tokens were used, each at most once a minute unless the service ends."""
        now = time.monotonic()
        due = {
            token_id: used
            for token_id, used in self._used.items()
            if all_tokens or now - self._kept.get(token_id, float("-inf")) >= USE_WRITE_INTERVAL_S
        }
        if not due:
            return
        for token_id in due:
            del self._used[token_id]
        if len(self._kept) >= _KNOWN_MAX:
            self._kept = {}
        self._kept |= dict.fromkeys(due, now)
        await self._run(self._access.mark_used, {one: now - used for one, used in due.items()})

    async def _ask(self, token: str) -> Caller:
        try:
            caller, lasts_us = await self._run(self._access.authenticate, token)
        except Unauthorized:
            if len(self._refused) >= _KNOWN_MAX:
                self._refused = {}
            self._refused[_hash(token)] = time.monotonic() + _REFUSED_S
            raise
        if len(self._known) >= _KNOWN_MAX:
            self._known = {}
        known_s = TOKEN_CACHE_S if lasts_us is None else min(TOKEN_CACHE_S, lasts_us / 1_000_000)
        now = time.monotonic()
        self._known[token] = caller, now + known_s
        self._used[caller.token_id] = now
        found: Caller = caller
        return found


def _hash(token: str) -> bytes:
    return sha256(token.encode()).digest()
