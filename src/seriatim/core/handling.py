"""Handlers as their users declare them: which events, what effect, and what a failure does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from seriatim.core.canonical import canonical_text
from seriatim.core.errors import InvalidArgument
from seriatim.core.event import EventRecord, LogIdentity, StreamRef
from seriatim.core.ids import id_problem
from seriatim.core.patterns import ALL, Names, is_pattern

Effect = Literal["transactional", "keyed", "unsafe"]
Mode = Literal["strict", "latest_wins"]
OnPoison = Literal["park", "skip", "stop"]

_EFFECTS = ("transactional", "keyed", "unsafe")
_MODES = ("strict", "latest_wins")
_ON_POISON = ("park", "skip", "stop")
_LONGEST_S = 366 * 86_400.0


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed event is tried again, and when it is not."""

    attempts: int = 5
    base_s: float = 1.0
    factor: float = 2.0
    cap_s: float = 60.0
    jitter: float = 0.2  # the part of a pause that chance may take away
    final: tuple[type[BaseException], ...] = ()  # errors that no retry helps against

    def pause_s(self, attempt: int, chance: float) -> float:
        """Return how long to wait after an attempt, the first being 1; chance is within [0, 1)."""
        try:
            grown = self.base_s * self.factor ** (attempt - 1)
        except OverflowError:
            grown = self.cap_s
        return min(grown, self.cap_s) * (1.0 - self.jitter * chance)

    def gives_up(self, attempt: int, error: BaseException) -> bool:
        """Tell whether an event that failed in this attempt goes to the dead letters."""
        return attempt >= self.attempts or isinstance(error, self.final)


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """A function that has an effect for every event that it wants, declared once.

    `start` is the position after which it begins; what lies before is no business of its.
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
        """What the registry must know to keep order, as text."""
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
        """Whether an effect that may have happened is never repeated by itself."""
        return self.effect == "unsafe" and not self.retry_unknown

    def wants(self, event_type: str, stream_type: str | None) -> bool:
        """Tell whether an event is for this handler."""
        if self.stream_types is not None and stream_type not in self.stream_types:
            return False
        return ALL in self.events or Names.of(self.events).allows(event_type)


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """What the registry must know of an event: who it is, and its place in its stream.

    `first_seq` is the number that the stream began with. `event` is the event itself, if it is to
    be kept while it is unfinished: a record, or anything that JSON can hold.
    """

    event_id: str
    tenant_id: str = "default"
    event_type: str = ""
    position: int = 0
    stream: StreamRef | None = None
    stream_seq: int | None = None
    first_seq: int = 1
    event: Any = None
    log: LogIdentity | None = None  # the log it was read from; None: its source is no log
    flaw: str = ""  # why it is no event that anybody could handle

    @property
    def key(self) -> tuple[str, str]:
        """Who the event is, among all tenants."""
        return self.tenant_id, self.event_id

    @property
    def line(self) -> tuple[str, str, str] | None:
        """The stream in which its order counts, if it has one."""
        if self.stream is None or self.stream_seq is None:
            return None
        return self.tenant_id, *self.stream

    @property
    def body(self) -> str | None:
        """The event as text."""
        return None if self.event is None else msgspec.json.encode(self.event).decode()

    @classmethod
    def of(cls, event: EventRecord, first_seq: int = 1, log: LogIdentity | None = None) -> Delivery:
        """Take from a record what the registry must know; `log` is the identity of its log."""
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


def handler(  # noqa: PLR0913 - a declaration is its parts
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
    """Make a handler of a function `run(event, context)`; `effect` says what it does.

    `transactional`: it writes by `context.connection`, in the registry's own transaction.
    `keyed`: its target takes `context.key` and does nothing twice. `unsafe`: nothing makes it once,
    so after a crash it is never repeated by itself, unless `retry_unknown` says so.
    """

    def declare(run: Callable[[EventRecord, Any], Any]) -> Handler:
        return checked(
            Handler(
                name=name,
                run=run,
                effect=effect,
                events=_texts(events),
                stream_types=None if stream_types is None else _texts(stream_types),
                mode=mode,
                start=start,
                on_poison=on_poison,
                retry=retry or RetryPolicy(),
                retry_unknown=retry_unknown,
            )
        )

    return declare


def _texts(given: Any) -> Any:
    return given if isinstance(given, str) else tuple(given)


def checked(made: Handler) -> Handler:
    """Return a handler that can run, or say what is wrong with its declaration."""
    if problem := id_problem(made.name):
        raise _bad(made.name, f"its name {problem}")
    if not callable(made.run):
        raise _bad(made.name, "it needs a function of an event and a context")
    for what, value, known in (
        ("effect", made.effect, _EFFECTS),
        ("mode", made.mode, _MODES),
        ("on_poison", made.on_poison, _ON_POISON),
    ):
        if value not in known:
            raise _bad(made.name, f"{what} is one of {', '.join(known)}")
    if not _are_texts(made.events) or not all(map(is_pattern, made.events)):
        raise _bad(made.name, "events is a list of types, such as 'order.placed' or 'order.*'")
    if made.stream_types is not None and not (
        _are_texts(made.stream_types) and all(made.stream_types)
    ):
        raise _bad(made.name, "stream_types is a list of types, such as 'order'")
    if type(made.start) is not int or made.start < 0:
        raise _bad(made.name, "start is a position, from 0")
    if made.retry_unknown and made.effect != "unsafe":
        raise _bad(made.name, "retry_unknown is for unsafe effects: others are retried anyway")
    _check_policy(made)
    return made


def _check_policy(made: Handler) -> None:
    policy = made.retry
    if type(policy.attempts) is not int or policy.attempts < 1:
        raise _bad(made.name, "attempts counts from 1")
    bounds: dict[str, tuple[Any, float, float]] = {
        "base_s": (policy.base_s, 0.0, _LONGEST_S),
        "factor": (policy.factor, 1.0, 1_000.0),
        "cap_s": (policy.cap_s, 0.0, _LONGEST_S),
        "jitter": (policy.jitter, 0.0, 1.0),
    }
    for what, (value, least, most) in bounds.items():
        if type(value) not in (int, float) or not least <= value <= most:
            raise _bad(made.name, f"{what} is a number from {least:g} to {most:g}")
    final: Any = policy.final
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in final):
        raise _bad(made.name, "final is a list of exception classes")


def _are_texts(given: Any) -> bool:
    return isinstance(given, tuple) and bool(given) and all(isinstance(one, str) for one in given)


def _bad(name: Any, problem: str) -> InvalidArgument:
    return InvalidArgument(f"handler {name!r:.80}: {problem}", details={"argument": "handler"})
