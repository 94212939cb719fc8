"""The errors of Seriatim: one class tree in which each leaf has one stable code.

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
    │   ├── EventNotSettled         conflict                    (retryable: deliver it again)
    │   └── SubscriptionParked      conflict
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
    └── BackendFailure              backend_failure             (retryable unless stated otherwise)

`ValidationError` is not in the tree: each profile maps it to an error with a code of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal


class SeriatimError(Exception):
    """The base class of all errors: a request was rejected, or could not be carried out.

    Attributes:
        code: The stable code of the error.
        message: What failed, for people.
        details: Facts about the failure by name, for programs.
        retryable: Whether the same request may succeed later.
    """

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
        """The seconds to wait before a retry, or 0 if unknown."""
        seconds = self.details.get("retry_after_s")
        return max(0.0, float(seconds)) if isinstance(seconds, int | float) else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of the error, the same in every interface."""
        return {
            "code": self.code,
            "message": self.message,
            "details": self.details,
            "retryable": self.retryable,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling, so that an error crosses a process boundary with all of its fields."""
        return _rebuild, (type(self), self.message, self.details, self.retryable)


def _rebuild(
    kind: type[SeriatimError], message: str, details: dict[str, Any], retryable: bool
) -> SeriatimError:
    return kind(message, details=details, retryable=retryable)


class EmptyAppend(SeriatimError):
    """An append needs at least one event."""

    code = "empty_append"


class InvalidArgument(SeriatimError):
    """An argument is invalid."""

    code = "invalid_argument"


class InvalidEvent(SeriatimError):
    """An event is malformed, or carries fields that only the log may set."""

    code = "invalid_event"


class SchemaViolation(SeriatimError):
    """A payload does not match the schema of its event type."""

    code = "schema_violation"


class InvalidQuery(SeriatimError):
    """A query or filter is malformed; nothing was run."""

    code = "invalid_query"


class PiiPolicyViolation(SeriatimError):
    """The guard found a secret or personal data; nothing was stored."""

    code = "pii_policy_violation"


class IdempotencyConflict(SeriatimError):
    """A key or event id is already stored with different content; nothing was stored."""

    code = "idempotency_conflict"


class EventSequenceInvalid(SeriatimError):
    """A sequence number of the stream is not the expected one; nothing was stored."""

    code = "event_sequence_invalid"


class ConditionalAppendConflict(SeriatimError):
    """The context changed since it was read; nothing was stored."""

    code = "conditional_append_conflict"

    @property
    def expected(self) -> int | None:
        """The context version that the caller expected."""
        return self.details.get("expected")

    @property
    def after(self) -> int | None:
        """The position after which no event was allowed to match, if the condition has one."""
        return self.details.get("after")

    @property
    def actual(self) -> int | None:
        """The context version at the time of the append."""
        return self.details.get("actual")


class Conflict(SeriatimError):
    """The request conflicts with stored data."""

    code = "conflict"


class EventNotSettled(Conflict):
    """A handler has not finished an event: keep the cursor or offset, and deliver it again.

    `details` has the event and its `verdict`: `waiting` (it failed and waits for its retry),
    `blocked` (an earlier event of its stream is not settled, or the handler is paused) or
    `in_progress`.
    """

    retryable_by_default = True


class SubscriptionParked(Conflict):
    """A subscription stopped at a batch that its handler could not process.

    It continues when an operator retries, skips or resets it. `details` has the name, the positions
    `first_position` and `last_position` of the batch, and the number of `attempts`.
    """


class NotFound(SeriatimError):
    """Nothing with that id exists."""

    code = "not_found"


class ProjectionOutOfDate(SeriatimError):
    """The projection has not reached the required position."""

    code = "projection_out_of_date"
    retryable_by_default = True


class ProjectionTimeout(SeriatimError):
    """The projection did not reach the position in time."""

    code = "projection_timeout"
    retryable_by_default = True


class ProjectionFailed(SeriatimError):
    """A projection stopped at an event that it could not process, or differs from its log."""

    code = "projection_failed"


class IdempotencyKeyReuse(SeriatimError):
    """A command key was reused for a different request."""

    code = "idempotency_key_reuse"


class Unauthorized(SeriatimError):
    """No valid token was sent."""

    code = "unauthorized"


class Forbidden(SeriatimError):
    """The token does not have the required right."""

    code = "forbidden"


class LimitExceeded(SeriatimError):
    """A limit was exceeded."""

    code = "limit_exceeded"


class LeaseLost(SeriatimError):
    """Another owner holds the lease or claim now."""

    code = "lease_lost"


class TimedOut(SeriatimError):
    """The timeout expired before anything was sent; nothing was stored."""

    code = "timeout"
    retryable_by_default = True


class LogIdentityChanged(SeriatimError):
    """The cursor belongs to another log, or to a history that a restore replaced."""

    code = "log_identity_changed"


class BackendFailure(SeriatimError):
    """The store could not carry out the request."""

    code = "backend_failure"
    retryable_by_default = True

    @property
    def ambiguous(self) -> bool:
        """Whether the append may have been stored: repeat it with the same keys or event ids."""
        return bool(self.details.get("ambiguous", False))


EventPart = Literal["envelope", "json", "payload", "shape"]


class ValidationError(Exception):
    """A problem of one event, before a profile maps it to an error code.

    Attributes:
        part: The violated rule: `envelope` for a field around the payload, `json` for a value that
            is not JSON, `payload` for a payload that is not an object, or `shape` for a payload
            that does not match its type.
        location: A field name, or a JSON path such as `$.facts[0].key`.
        message: What is wrong; never the value itself, which may be a secret.
    """

    def __init__(self, part: EventPart, where: str, message: str) -> None:
        self.part: EventPart = part
        self.location = where
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
