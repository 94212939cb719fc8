"""Declarations of handlers: which events, which kind of effect, and the retry policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from seriatim.core.backoff import Backoff
from seriatim.core.canonical import canonical_text
from seriatim.core.errors import InvalidArgument
from seriatim.core.event import EventRecord, LogIdentity, StreamRef
from seriatim.core.ids import id_problem
from seriatim.core.patterns import WILDCARD, NameFilter, is_pattern

Effect = Literal["transactional", "keyed", "unsafe"]
Mode = Literal["strict", "latest_wins"]
OnPoison = Literal["park", "skip", "stop"]

_EFFECTS = ("transactional", "keyed", "unsafe")
_MODES = ("strict", "latest_wins")
ON_POISON = ("park", "skip", "stop")
_DELAY_MAX_S = 366 * 86_400.0


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed event is retried, with exponential backoff.

    Attributes:
        attempts: The number of attempts before the event becomes a dead letter.
        base_s: The pause after the first attempt, in seconds.
        factor: The growth of the pause with each attempt.
        cap_s: The longest pause, in seconds.
        jitter: The fraction of a pause that is random.
        final: Exception classes that are not retried.

    Example:
        policy = RetryPolicy(attempts=3, base_s=0.5, final=(ValueError,))
    """

    attempts: int = 5
    base_s: float = 1.0
    factor: float = 2.0
    cap_s: float = 60.0
    jitter: float = 0.2
    final: tuple[type[BaseException], ...] = ()

    def pause_s(self, attempt: int, random_fraction: float) -> float:
        """Return the pause after an attempt, in seconds.

        Args:
            attempt: The number of the failed attempt, from 1.
            random_fraction: A random number in [0, 1), which shortens the pause by the jitter.
        """
        backoff = Backoff(
            first_s=self.base_s, cap_s=self.cap_s, factor=self.factor, jitter=self.jitter
        )
        return backoff.delay_s(attempt, random_fraction)

    def gives_up(self, attempt: int, error: BaseException) -> bool:
        """Return whether an event that failed in this attempt becomes a dead letter."""
        return attempt >= self.attempts or isinstance(error, self.final)


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """A declared handler: a function that is called for each event that it selects.

    The fields are the arguments of `handler`, with an example there; `run` is the function.
    """

    name: str
    run: Callable[[EventRecord, Any], Any]
    effect: Effect
    events: tuple[str, ...] = ("*",)
    stream_types: tuple[str, ...] | None = None
    mode: Mode = "strict"
    start: int = 0
    on_poison: OnPoison = "park"
    retry: RetryPolicy = RetryPolicy()
    retry_unknown: bool = False

    @property
    def declaration(self) -> str:
        """The declaration as text, which the registry stores and compares."""
        # Without the retry policy and `on_poison`: a release may change them at any time.
        return canonical_text(
            {
                "effect": self.effect,
                "events": sorted(self.events),
                "mode": self.mode,
                "start": self.start,
                "stream_types": None if self.stream_types is None else sorted(self.stream_types),
            }
        )

    @property
    def at_most_once(self) -> bool:
        """Whether an effect that may have happened is never repeated automatically."""
        return self.effect == "unsafe" and not self.retry_unknown

    def accepts(self, event_type: str, stream_type: str | None) -> bool:
        """Return whether the handler selects an event."""
        if self.stream_types is not None and stream_type not in self.stream_types:
            return False
        return WILDCARD in self.events or NameFilter.parse(self.events).allows(event_type)


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The registry's description of an event.

    Attributes:
        event_id: The event id.
        tenant_id: The tenant of the event.
        event_type: The event type.
        position: The position of the event in its log.
        stream: The stream as `(type, id)`, or None.
        stream_seq: The sequence number of the event in its stream.
        first_seq: The first sequence number of the stream.
        event: The event itself, to store it while it is unfinished: a record or any JSON value.
        log: The identity of the log that it was read from; None if its source is not a log.
        flaw: Why the message is not an event that a handler can process; empty if it is.

    Example:
        body = {"order": "o-1"}
        delivery = Delivery(event_id="m-1", event_type="order.placed", event=body)
        registry.handle(receipts, delivery)
    """

    event_id: str
    tenant_id: str = "default"
    event_type: str = ""
    position: int = 0
    stream: StreamRef | None = None
    stream_seq: int | None = None
    first_seq: int = 1
    event: Any = None
    log: LogIdentity | None = None
    flaw: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The identity of the event across tenants: tenant id and event id."""
        return self.tenant_id, self.event_id

    @property
    def ordered_stream(self) -> tuple[str, str, str] | None:
        """The stream in which events are handled in order, or None: tenant, type and id."""
        if self.stream is None or self.stream_seq is None:
            return None
        return self.tenant_id, *self.stream

    @property
    def event_json(self) -> str | None:
        """The event as JSON text, or None."""
        return None if self.event is None else msgspec.json.encode(self.event).decode()

    @classmethod
    def of(cls, event: EventRecord, first_seq: int = 1, log: LogIdentity | None = None) -> Delivery:
        """Build the delivery of a record.

        Args:
            event: The record.
            first_seq: The first sequence number of its stream.
            log: The identity of its log.
        """
        return cls(
            event_id=event.event_id,
            tenant_id=event.tenant_id,
            event_type=event.event_type,
            position=event.position,
            stream=event.stream,
            stream_seq=event.stream_seq,
            first_seq=first_seq,
            event=event,
            log=log,
        )


def handler(
    name: str,
    *,
    effect: Effect,
    events: Iterable[str] = ("*",),
    stream_types: Iterable[str] | None = None,
    mode: Mode = "strict",
    start: int = 0,
    on_poison: OnPoison = "park",
    retry: RetryPolicy | None = None,
    retry_unknown: bool = False,
) -> Callable[[Callable[[EventRecord, Any], Any]], Handler]:
    """Declare a function `run(event, context)` as a handler.

    Args:
        name: The name of the handler in the registry.
        effect: The kind of effect. `transactional`: the function writes with `context.connection`,
            in the registry's transaction. `keyed`: the target deduplicates by `context.key`.
            `unsafe`: neither, so after a crash the effect is not repeated automatically.
        events: Event types or patterns such as `order.*`.
        stream_types: Stream types; None selects all events.
        mode: `strict` handles the events of each stream in order. `latest_wins` may handle a later
            event of a stream first; earlier ones are then stale.
        start: Handle events after this position.
        on_poison: What a dead letter does to its stream: `park` it until an operator acts, `skip`
            to its next events, or `stop` the handler.
        retry: The retry policy.
        retry_unknown: Repeat an unsafe effect even if it may have happened.

    Returns:
        A decorator that turns the function into a `Handler`.

    Raises:
        InvalidArgument: The declaration is invalid.

    Example:
        @handler("welcome", effect="keyed", events=["customer.registered"])
        def welcome(event, context):
            print("send", event.payload, "with the key", context.key)
    """

    def declare(run: Callable[[EventRecord, Any], Any]) -> Handler:
        return check_handler(
            Handler(
                name=name,
                run=run,
                effect=effect,
                events=_to_tuple(events),
                stream_types=None if stream_types is None else _to_tuple(stream_types),
                mode=mode,
                start=start,
                on_poison=on_poison,
                retry=retry or RetryPolicy(),
                retry_unknown=retry_unknown,
            )
        )

    return declare


def _to_tuple(value: Any) -> Any:
    return value if isinstance(value, str) else tuple(value)


def check_handler(declared: Handler) -> Handler:
    """Return the handler if its declaration is valid, or raise `InvalidArgument`."""
    if problem := id_problem(declared.name):
        raise _declaration_error(declared.name, f"the name {problem}")
    if not callable(declared.run):
        raise _declaration_error(declared.name, "it must be a function of an event and a context")
    for field, value, allowed in (
        ("effect", declared.effect, _EFFECTS),
        ("mode", declared.mode, _MODES),
        ("on_poison", declared.on_poison, ON_POISON),
    ):
        if value not in allowed:
            raise _declaration_error(declared.name, f"{field} must be one of {', '.join(allowed)}")
    if not _are_texts(declared.events) or not all(map(is_pattern, declared.events)):
        raise _declaration_error(
            declared.name, "events must be a list of types, such as 'order.placed' or 'order.*'"
        )
    if declared.stream_types is not None and not (
        _are_texts(declared.stream_types) and all(declared.stream_types)
    ):
        raise _declaration_error(
            declared.name, "stream_types must be a list of types, such as 'order'"
        )
    if type(declared.start) is not int or declared.start < 0:
        raise _declaration_error(declared.name, "start must be a position from 0")
    if declared.retry_unknown and declared.effect != "unsafe":
        raise _declaration_error(
            declared.name, "retry_unknown is for unsafe effects only: others are always retried"
        )
    if problem := find_policy_problem(declared.retry):
        raise _declaration_error(declared.name, problem)
    return declared


def find_policy_problem(policy: RetryPolicy) -> str | None:
    """Return what is wrong with a retry policy; None if it is valid."""
    if type(policy.attempts) is not int or policy.attempts < 1:
        return "attempts must be a whole number from 1"
    bounds: dict[str, tuple[Any, float, float]] = {
        "base_s": (policy.base_s, 0.0, _DELAY_MAX_S),
        "factor": (policy.factor, 1.0, 1_000.0),
        "cap_s": (policy.cap_s, 0.0, _DELAY_MAX_S),
        "jitter": (policy.jitter, 0.0, 1.0),
    }
    for field, (value, minimum, maximum) in bounds.items():
        if type(value) not in (int, float) or not minimum <= value <= maximum:
            return f"{field} must be a number from {minimum:g} to {maximum:g}"
    final: Any = policy.final
    if not all(isinstance(item, type) and issubclass(item, BaseException) for item in final):
        return "final must be a list of exception classes"
    return None


def _are_texts(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(item, str) for item in value)


def _declaration_error(name: Any, problem: str) -> InvalidArgument:
    return InvalidArgument(f"handler {name!r:.80}: {problem}", details={"argument": "handler"})
