"""The last appends that this process refused, so that users can look up the reason.

They are in memory, with bounds on their number, the bytes of each, and the tenants. A request that
a guard rejects is never kept, whatever refused it: schemas are checked before the guard.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import count
from typing import Any

from seriatim.access.rights import Caller
from seriatim.core.canonical import canonical_text
from seriatim.core.errors import (
    BackendFailure,
    Forbidden,
    PiiPolicyViolation,
    SeriatimError,
    Unauthorized,
)
from seriatim.core.guard import Guard, ScannedEvent
from seriatim.core.kinds import PROFILE_KINDS
from seriatim.core.times import format_us
from seriatim.wire.messages import RefusedAppend

REFUSALS_PER_TENANT = 16
REFUSAL_TENANTS = 64
REFUSAL_BYTES = 16 * 1024  # of one request; a larger one is listed without its text


class RefusedAppends:
    """The last refused appends of each tenant; used by the event loop alone.

    Args:
        guard: The guard of the log.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._tenants: OrderedDict[str, deque[RefusedAppend]] = OrderedDict()
        self._numbers = count(1)
        self._process = secrets.token_hex(4)  # an id never names a refusal of another process

    def add(self, tenant_id: str, subject: str, error: SeriatimError, value: Any) -> None:
        """Keep a refused append, unless the error is about the caller or the service.

        Args:
            tenant_id: The tenant.
            subject: The subject of the caller's token.
            error: Why the append was refused.
            value: The append in JSON, as plain values; None if it is unknown or too large.
        """
        if error.retryable or isinstance(error, BackendFailure | Forbidden | Unauthorized):
            return
        text = None if isinstance(error, PiiPolicyViolation) else self._make_text(value)
        refusal = RefusedAppend(
            f"{self._process}-{next(self._numbers)}",
            format_us(time.time_ns() // 1000),
            error.code,
            subject,
            [] if text is None else _list_event_types(value),
            text,
        )
        refused = self._tenants.setdefault(tenant_id, deque(maxlen=REFUSALS_PER_TENANT))
        refused.appendleft(refusal)
        self._tenants.move_to_end(tenant_id)
        while len(self._tenants) > REFUSAL_TENANTS:
            self._tenants.popitem(last=False)

    def list_for(self, caller: Caller, tenant_id: str) -> list[RefusedAppend]:
        """Return the refused appends that a caller may see, newest first.

        Without the right to read, these are its own; with a scope of types, those of its types.
        """
        return [
            refusal for refusal in self._tenants.get(tenant_id, ()) if _is_visible(caller, refusal)
        ]

    def _make_text(self, value: Any) -> str | None:
        """Return the text of a request, or None if it is too large, malformed or rejected."""
        if value is None:
            return None
        try:
            text = canonical_text(value)
            scanned = ScannedEvent(value, text)
            if len(text.encode()) > REFUSAL_BYTES or any(
                guard.scan(scanned) is not None for guard in self._find_guards(value)
            ):
                return None
        except Exception:  # noqa: BLE001 - a guard of the user's; what it does not pass is not kept
            return None
        return text

    def _find_guards(self, value: Any) -> Sequence[Guard]:
        """Return the guard of the log, and those of the profiles that a request is for."""
        guards = [self._guard]
        for name, kind in PROFILE_KINDS.items():
            names_profile = value.get("profile") == kind.profile
            if names_profile or any(name in _find_stream_types(event) for event in value["events"]):
                guards.append(kind.guard)
        return guards


def _find_stream_types(event: Any) -> tuple[Any, ...]:
    """Return the stream type of an event in JSON, in either form; the event may be malformed."""
    stream = event.get("stream")
    return event.get("stream_type"), stream[0] if isinstance(stream, list) and stream else None


def _list_event_types(value: Any) -> list[str]:
    return [str(event.get("event_type")) for event in value["events"]]


def _is_visible(caller: Caller, refusal: RefusedAppend) -> bool:
    if "read" not in caller.rights and refusal.subject != caller.subject:
        return False
    if caller.types is None:
        return True
    return bool(refusal.event_types) and all(map(caller.can_read, refusal.event_types))
