"""Every error Seriatim reports, as one tree in which each leaf has one stable code.

    SeriatimError
    ├── EmptyAppend                 empty_append
    ├── InvalidArgument             invalid_argument
    ├── InvalidEvent                invalid_event
    ├── SchemaViolation             schema_violation
    ├── InvalidQuery                invalid_query
    ├── PiiPolicyViolation          pii_policy_violation
    ├── IdempotencyConflict         idempotency_conflict
    ├── EventSequenceInvalid        event_sequence_invalid
    ├── ConditionalAppendConflict   conditional_append_conflict
    ├── Conflict                    conflict
    │   └── EventNotSettled         conflict                    (retryable: deliver it again)
    ├── NotFound                    not_found
    ├── ProjectionOutOfDate         projection_out_of_date      (retryable)
    ├── ProjectionTimeout           projection_timeout          (retryable)
    ├── ProjectionFailed            projection_failed
    ├── IdempotencyKeyReuse         idempotency_key_reuse
    ├── Unauthorized                unauthorized
    ├── Forbidden                   forbidden
    ├── LimitExceeded               limit_exceeded              (retryable when a queue is full)
    ├── LeaseLost                   lease_lost
    ├── TimedOut                    timeout                     (retryable: nothing was stored)
    ├── LogIdentityChanged          log_identity_changed
    └── BackendFailure              backend_failure             (retryable unless told otherwise)

`Flaw` stands outside the tree: the pure checks raise it, and each door turns it into its own code.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal


class SeriatimError(Exception):
    """Something the caller asked for was refused, or could not be done."""

    code: ClassVar[str] = "error"
    retryable_by_default: ClassVar[bool] = False

    def __init__(
        self,
        message: str | None = None,
        *,
        details: dict[str, Any] | None = None,
        retryable: bool | None = None,
    ) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        self.details: dict[str, Any] = details or {}
        self.retryable = self.retryable_by_default if retryable is None else retryable
        super().__init__(self.message)

    @property
    def retry_after_s(self) -> float:
        """How long to wait before another try, where that is known; else 0."""
        told = self.details.get("retry_after_s")
        return max(0.0, float(told)) if isinstance(told, int | float) else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the one shape in which every door shows an error."""
        return {
            "code": self.code,
            "message": self.message,
            "details": self.details,
            "retryable": self.retryable,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross a process boundary whole: racers in other processes report real errors."""
        return _rebuild, (type(self), self.message, self.details, self.retryable)


def _rebuild(
    kind: type[SeriatimError], message: str, details: dict[str, Any], retryable: bool
) -> SeriatimError:
    return kind(message, details=details, retryable=retryable)


class EmptyAppend(SeriatimError):
    """An append needs at least one event."""

    code = "empty_append"


class InvalidArgument(SeriatimError):
    """An argument is not what this call takes."""

    code = "invalid_argument"


class InvalidEvent(SeriatimError):
    """An event is malformed, or carries fields that only the log may set."""

    code = "invalid_event"


class SchemaViolation(SeriatimError):
    """A payload does not have the shape its event type declares."""

    code = "schema_violation"


class InvalidQuery(SeriatimError):
    """A query or filter has an invalid shape; nothing was run."""

    code = "invalid_query"


class PiiPolicyViolation(SeriatimError):
    """The guard found a secret or personal data; nothing was stored."""

    code = "pii_policy_violation"


class IdempotencyConflict(SeriatimError):
    """A key or event id is known, with other content; nothing was stored."""

    code = "idempotency_conflict"


class EventSequenceInvalid(SeriatimError):
    """The stream is not where the caller expected it; nothing was stored."""

    code = "event_sequence_invalid"


class ConditionalAppendConflict(SeriatimError):
    """The context changed since it was read; nothing was stored."""

    code = "conditional_append_conflict"

    @property
    def expected(self) -> int | None:
        """The context version the caller had read."""
        return self.details.get("expected")

    @property
    def after(self) -> int | None:
        """The position after which nothing was to match, where the condition named one."""
        return self.details.get("after")

    @property
    def actual(self) -> int | None:
        """The context version the store found."""
        return self.details.get("actual")


class Conflict(SeriatimError):
    """The request contradicts what is stored."""

    code = "conflict"


class EventNotSettled(Conflict):
    """A handler has not finished with an event: keep the cursor or offset, and deliver it again.

    `details` has the event and its `verdict`: `waiting` (it failed and backs off), `blocked` (an
    earlier event of its stream is not settled, or the handler is paused) or `in_progress`.
    """

    retryable_by_default = True


class NotFound(SeriatimError):
    """There is nothing with that id."""

    code = "not_found"


class ProjectionOutOfDate(SeriatimError):
    """The projection has not reached the demanded position."""

    code = "projection_out_of_date"
    retryable_by_default = True


class ProjectionTimeout(SeriatimError):
    """The projection did not reach the position in time."""

    code = "projection_timeout"
    retryable_by_default = True


class ProjectionFailed(SeriatimError):
    """A projection stopped at an event that it could not take, or does not equal its log."""

    code = "projection_failed"


class IdempotencyKeyReuse(SeriatimError):
    """A command key was used again for another request."""

    code = "idempotency_key_reuse"


class Unauthorized(SeriatimError):
    """No valid token was given."""

    code = "unauthorized"


class Forbidden(SeriatimError):
    """The token does not carry this right."""

    code = "forbidden"


class LimitExceeded(SeriatimError):
    """A bound was exceeded."""

    code = "limit_exceeded"


class LeaseLost(SeriatimError):
    """Another owner holds the claim now."""

    code = "lease_lost"


class TimedOut(SeriatimError):
    """The time ran out before anything was sent; nothing was stored."""

    code = "timeout"
    retryable_by_default = True


class LogIdentityChanged(SeriatimError):
    """The cursor belongs to another log, or to a past that was restored over."""

    code = "log_identity_changed"


class BackendFailure(SeriatimError):
    """The store could not do it."""

    code = "backend_failure"
    retryable_by_default = True

    @property
    def ambiguous(self) -> bool:
        """Whether the append may have been stored: repeat it with the same keys or event ids."""
        return bool(self.details.get("ambiguous", False))


Part = Literal["envelope", "json", "payload", "shape"]


class Flaw(Exception):
    """What is wrong with one event, before a door gives it a code.

    `part` says which rule it broke: the `envelope` around the payload, `json` that is none,
    a `payload` that is no object, or the `shape` its type declares. `where` is a field name or a
    JSON path such as `$.facts[0].key`; a message never holds the value.
    """

    def __init__(self, part: Part, where: str, message: str) -> None:
        self.part: Part = part
        self.where = where
        self.message = message
        super().__init__(f"{where}: {message}")


ALL_ERRORS: tuple[type[SeriatimError], ...] = (
    EmptyAppend,
    InvalidArgument,
    InvalidEvent,
    SchemaViolation,
    InvalidQuery,
    PiiPolicyViolation,
    IdempotencyConflict,
    EventSequenceInvalid,
    ConditionalAppendConflict,
    Conflict,
    NotFound,
    ProjectionOutOfDate,
    ProjectionTimeout,
    ProjectionFailed,
    IdempotencyKeyReuse,
    Unauthorized,
    Forbidden,
    LimitExceeded,
    LeaseLost,
    TimedOut,
    LogIdentityChanged,
    BackendFailure,
)
