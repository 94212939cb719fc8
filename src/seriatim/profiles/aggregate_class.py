"""The base class of aggregates: typed state, folded from the events that commands record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar, Unpack, get_args, get_origin

from msgspec.structs import replace

from seriatim.core.canonical import check_and_encode, decode_stored_json
from seriatim.core.errors import InvalidArgument, ValidationError
from seriatim.core.event import EventRecord, NewEvent, StreamRef
from seriatim.log.catalogue import Catalogue, EventFields
from seriatim.profiles.aggregate_values import AGGREGATES_PROFILE

StateT = TypeVar("StateT")
AggregateT = TypeVar("AggregateT", bound="Aggregate[Any]")


class Aggregate(Generic[StateT]):
    """An entity whose state is the fold of its events; subclass it with the type of the state.

    Command methods read `state`, and record events. `apply` alone changes the state, so that
    loading the events again gives the same state. `log.aggregates` loads and saves aggregates.

    The class arguments of a subclass:

    - `stream_type`: The stream type, required.
    - `version`: Increase it when `apply` or the state changes its meaning: snapshots of other
      versions are ignored.
    - `catalogue`: A `Catalogue` whose classes `apply` receives instead of plain events.
    - `snapshot_every`: The number of events after which a snapshot is stored; None for never.

    The type of the state must have a value without arguments, or override `make_state`.

    Attributes:
        aggregate_id: The id.
        aggregate_seq: The number of the last stored event; None for a new aggregate.
        org_id: The organisation that it was loaded from; None for that of the log.
        state: The state after all events, recorded ones included.
        new_events: The recorded events that are not stored yet.
        defect: Why this object cannot be saved, or None. Loading it again helps.

    Example:
        class OrderState(msgspec.Struct):
            total: int = 0

        class Order(Aggregate[OrderState], stream_type="order"):
            def apply(self, event):
                self.state.total += event.payload["total"]

            def place(self, total):
                self.record("order.placed", {"total": total})

        order = Order("o-1")
        order.place(12)
        actor = {"actor_type": "user", "actor_id": "u-1", "request_id": "r-1"}
        log.aggregates.save(order, org_id="acme", **actor)
    """

    stream_type: ClassVar[str] = ""
    version: ClassVar[int] = 1
    catalogue: ClassVar[Catalogue | None] = None
    snapshot_every: ClassVar[int | None] = None
    state_type: ClassVar[Any] = dict

    def __init_subclass__(
        cls,
        *,
        stream_type: str | None = None,
        version: int | None = None,
        catalogue: Catalogue | None = None,
        snapshot_every: int | None = None,
    ) -> None:
        """Store the class arguments; those that are left out are inherited."""
        super().__init_subclass__()
        given = {
            "stream_type": stream_type,
            "version": version,
            "catalogue": catalogue,
            "snapshot_every": snapshot_every,
            "state_type": _find_state_type(cls),
        }
        for name, value in given.items():
            if value is not None:
                setattr(cls, name, value)
        if cls.snapshot_every is not None and cls.snapshot_every < 1:
            msg = f"snapshot_every of {cls.__name__} must be at least 1, or None for no snapshots"
            raise InvalidArgument(msg, details={"argument": "snapshot_every"})

    def __init__(self, aggregate_id: str) -> None:
        check_aggregate_class(type(self))
        self.aggregate_id = aggregate_id
        self.aggregate_seq: int | None = None
        self.org_id: str | None = None
        self.state: StateT = self.make_state()
        self.new_events: list[NewEvent] = []
        self.defect: str | None = None

    @property
    def stream(self) -> StreamRef:
        """The stream of this aggregate, as `(type, id)`."""
        return self.stream_type, self.aggregate_id

    def make_state(self) -> StateT:
        """Return the state before the first event: by default the type of the state, called.

        Example:
            class Counter(Aggregate[list[int]], stream_type="counter"):
                def make_state(self):
                    return [0]
        """
        state: StateT = self.state_type()
        return state

    def apply(self, event: Any) -> None:
        """Change `state` by one event; override it.

        It must depend on the state and the event alone, because it runs again at every load. Events
        that it does not know must leave the state as it is.

        Args:
            event: An instance of the class that the catalogue binds to the event type. Without
                one, a `NewEvent` with type, version and payload.

        Example:
            class Order(Aggregate[dict[str, int]], stream_type="order"):
                def apply(self, event):
                    if event.event_type == "order.placed":
                        self.state["total"] = event.payload["total"]
        """
        raise NotImplementedError(f"{type(self).__name__} has no apply(self, event): define it")

    def record(
        self,
        event: object,
        payload: Mapping[str, Any] | None = None,
        **fields: Unpack[EventFields],
    ) -> None:
        """Record an event and apply it; `log.aggregates.save` stores it.

        Args:
            event: An event type, with its payload; an instance of a class of the catalogue; or a
                `NewEvent`.
            payload: The payload of an event type.
            **fields: Other fields of `NewEvent`, such as `tags`.

        Raises:
            InvalidEvent: The payload is not JSON.
            InvalidArgument: The class of the event is not bound in the catalogue.

        Example:
            class Order(Aggregate[dict[str, int]], stream_type="order"):
                def apply(self, event):
                    self.state["total"] = event.payload["total"]

                def place(self, total):
                    self.record("order.placed", {"total": total}, tags=("new",))

            Order("o-1").place(12)
        """
        new_event = self._make_event(event, payload, fields)
        # The state must be that of the stored event, whose payload is JSON: a tuple becomes a list.
        new_event = replace(new_event, payload=self._encode_and_decode(new_event.payload))
        try:
            self.apply(decode_event(type(self), new_event))
        except Exception:
            self.defect = f"apply failed for {new_event.event_type}"
            raise
        self.new_events.append(new_event)

    def _make_event(
        self, event: object, payload: Mapping[str, Any] | None, fields: EventFields
    ) -> NewEvent:
        if isinstance(event, str):
            new_event = NewEvent(event, dict(payload or {}), **fields)
        elif isinstance(event, NewEvent):
            new_event = replace(event, **fields)
        elif self.catalogue is None:
            msg = (
                f"{type(self).__name__} has no catalogue to look up {type(event).__qualname__} in: "
                "declare it with catalogue=…, or record an event type and a payload"
            )
            raise InvalidArgument(msg, details={"argument": "event"})
        else:
            new_event = self.catalogue.new_event(event, **fields)
        if new_event.stream not in (None, self.stream):
            msg = f"an event of {self.stream} cannot have the stream {new_event.stream}"
            raise InvalidArgument(msg, details={"argument": "stream"})
        return replace(new_event, stream=self.stream)

    def _encode_and_decode(self, payload: Any) -> Any:
        try:
            return decode_stored_json(check_and_encode(payload))
        except ValidationError as problem:
            raise AGGREGATES_PROFILE.error(problem, len(self.new_events)) from None

    def __repr__(self) -> str:
        """Return the stream, its last number and the number of new events."""
        return (
            f"{type(self).__name__}({self.aggregate_id!r}, aggregate_seq={self.aggregate_seq}, "
            f"new_events={len(self.new_events)})"
        )


def _find_state_type(cls: type) -> Any:
    """Return the type argument of `Aggregate[…]` in the bases of a class, or None."""
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        if isinstance(origin, type) and issubclass(origin, Aggregate):
            [state_type, *_] = get_args(base)
            return None if isinstance(state_type, TypeVar) else state_type
    return None


def check_aggregate_class(cls: object) -> None:
    """Raise `InvalidArgument` unless a value is a subclass of `Aggregate` with a stream type."""
    if not (isinstance(cls, type) and issubclass(cls, Aggregate) and cls.stream_type):
        msg = (
            f"{cls!r:.80} is not an aggregate class: declare one with "
            "class Order(Aggregate[OrderState], stream_type='order')"
        )
        raise InvalidArgument(msg, details={"argument": "aggregate"})


def decode_event(cls: type[Aggregate[Any]], event: EventRecord | NewEvent) -> Any:
    """Return what `apply` of an aggregate class receives for an event, stored or new."""
    catalogue = cls.catalogue
    if catalogue is None:
        return NewEvent(event.event_type, event.payload, event_version=event.event_version)
    if catalogue.find_class(event.event_type) is not None:
        return catalogue.decode(event)
    version = catalogue.newest(event.event_type) or event.event_version
    return NewEvent(event.event_type, catalogue.upcast(event), event_version=version)


def replay(aggregate: Aggregate[Any], records: Iterable[EventRecord]) -> EventRecord | None:
    """Apply stored events to an aggregate, and return the last one, or None without events."""
    last = None
    for last in records:
        try:
            aggregate.apply(decode_event(type(aggregate), last))
        except Exception as error:
            error.add_note(
                f"while {type(aggregate).__name__} {aggregate.aggregate_id!r:.80} applied "
                f"{last.event_type} at position {last.position}"
            )
            raise
        aggregate.aggregate_seq = last.stream_seq
    return last
