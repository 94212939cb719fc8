"""The operators' journal: each action of an operator is an event of the infrastructure tenant."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from seriatim.core.error_summary import sanitize_reason
from seriatim.core.errors import Conflict, SeriatimError
from seriatim.core.event import INFRASTRUCTURE_TENANT, EventRecord, NewEvent
from seriatim.core.ids import id_problem
from seriatim.core.operation import ActionName, Interface, Operation, Operator, OperatorAction
from seriatim.core.tenants import ALL_TENANTS
from seriatim.log.arguments import check_position, invalid_argument

if sys.platform != "win32":
    import pwd

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog

logger = logging.getLogger("seriatim.operations")

JOURNAL_STREAM_TYPE = "operator_journal"
JOURNAL_PAGE_MAX = 1000
REASON_MAX = 500  # characters; a longer reason is refused, not truncated
_TYPE_PREFIX = "operator."

# Exact types, not a pattern: every backend finds each of them by an index.
JOURNAL_TYPES = tuple(f"{_TYPE_PREFIX}{name}" for name in get_args(ActionName))


class _Payload(msgspec.Struct):
    interface: str = ""
    target: dict[str, Any] = {}
    count: int = 0
    reason: str = ""


def check_reason(reason: str, *, required: bool = False) -> str:
    """Return a valid reason of an action.

    Args:
        reason: The text.
        required: Whether it must not be empty, as for an action on several entries.

    Raises:
        InvalidArgument: It is missing, too long, or looks like a secret.
    """
    if required and not reason.strip():
        raise invalid_argument("reason", "is required for an action on several entries")
    if len(reason) > REASON_MAX:
        raise invalid_argument("reason", f"must not be longer than {REASON_MAX} characters")
    if reason and sanitize_reason(reason) != reason:
        raise invalid_argument("reason", "must be printable text without secrets")
    return reason


def check_expected_count(expected: int, actual: int) -> None:
    """Check that an action would affect as many entries as its operator expects.

    Raises:
        InvalidArgument: The expected number is out of range.
        Conflict: The actual number differs.
    """
    if not 0 <= expected < 1 << 63:
        raise invalid_argument("expected_count", "must be a whole number from 0 to 2^63 - 1")
    if expected != actual:
        msg = (
            f"the action would affect {actual}, not {expected}: list the entries again, then "
            "confirm the new number"
        )
        details = {"expected_count": expected, "actual_count": actual}
        raise Conflict(msg, details=details)


def local_operator(interface: Interface = "python") -> Operator:
    """Return the operating system's user of this process as an operator."""
    return Operator(_user_name(), interface, "person")


def _user_name() -> str:
    # Not getpass.getuser, which trusts environment variables.
    if sys.platform == "win32":
        name = os.getlogin()
        return name if id_problem(name) is None else "unknown"
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as a user without a name
        name = f"uid-{os.getuid()}"
    return name if id_problem(name) is None else "unknown"


def record_action(log: BaseLog, action: OperatorAction) -> bool:
    """Append an action that has succeeded to the journal.

    Secrets in the target are replaced. A failure to record does not undo the action: it is logged
    as an error and returned.

    Args:
        log: The log, of any tenant.
        action: The action.

    Returns:
        Whether the action was recorded.
    """
    event = NewEvent(
        f"{_TYPE_PREFIX}{action.action}",
        {
            "interface": action.operator.interface,
            "target": {name: _sanitize(value) for name, value in action.target.items()},
            "count": action.count,
            "reason": sanitize_reason(action.reason),
        },
        stream=(JOURNAL_STREAM_TYPE, action.tenant_id),
        actor_type=action.operator.actor_type,
        actor_id=action.operator.actor_id,
    )
    try:
        log.for_tenant(INFRASTRUCTURE_TENANT).append([event])
    except SeriatimError as error:
        msg = "the action %s succeeded, but was not recorded in the journal: %s"
        logger.error(msg, action.action, error.message)  # noqa: TRY400 - expected, no traceback
        return False
    return True


def _sanitize(value: Any) -> Any:
    if isinstance(value, str):
        return sanitize_reason(value)
    return [_sanitize(item) for item in value] if isinstance(value, list | tuple) else value


def read_journal(
    log: BaseLog, *, tenant_id: str | None = None, before: int | None = None, limit: int = 100
) -> list[Operation]:
    """Return the newest entries of the journal, newest first.

    Args:
        log: The log, of any tenant.
        tenant_id: Only actions that affect this tenant alone; None for all, `*` for those that
            affect all tenants.
        before: Only entries before this position, such as that of the last entry of a page.
        limit: The maximum number of entries.

    Raises:
        InvalidArgument: An argument is malformed.
    """
    if type(limit) is not int or not 1 <= limit <= JOURNAL_PAGE_MAX:
        raise invalid_argument("limit", f"must be from 1 to {JOURNAL_PAGE_MAX}, not {limit!r:.40}")
    if before is not None and check_position("before", before) == 0:
        raise invalid_argument("before", "must be a position, from 1")
    if tenant_id is not None and (problem := id_problem(tenant_id)):
        raise invalid_argument("tenant_id", problem)
    page = log.for_tenant(INFRASTRUCTURE_TENANT).page(
        limit=limit,
        until=None if before is None else before - 1,
        stream=None if tenant_id is None else (JOURNAL_STREAM_TYPE, tenant_id),
        types=JOURNAL_TYPES,
        newest_first=True,
    )
    return [_decode(record) for record in page.records]


def _decode(record: EventRecord) -> Operation:
    """Convert a record to an entry; one that was not written by `record_action` has no details."""
    try:
        payload = msgspec.convert(record.payload, _Payload)
    except msgspec.ValidationError:
        payload = _Payload()
    return Operation(
        position=record.position,
        recorded_at=record.recorded_at,
        action=record.event_type.removeprefix(_TYPE_PREFIX),
        actor_type=record.actor_type or "",
        actor_id=record.actor_id or "",
        interface=payload.interface,
        tenant_id=record.stream_id or ALL_TENANTS,
        target=payload.target,
        count=payload.count,
        reason=payload.reason,
    )
