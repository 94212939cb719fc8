"""The catalogue: event types bound to Python classes, and upcasters of older versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

import msgspec

from seriatim.core.errors import Conflict, InvalidArgument, SchemaViolation
from seriatim.core.event import EventRecord, NewEvent, StreamRef
from seriatim.core.kinds import EventType, check_event_type
from seriatim.core.schema import derive_schema, make_decoder

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog

C = TypeVar("C", bound=type)
T = TypeVar("T")
Upcaster = Callable[[dict[str, Any]], Any]
U = TypeVar("U", bound=Upcaster)


class EventFields(TypedDict, total=False):
    """The fields of `NewEvent` that an instance of a bound class does not set."""

    stream: StreamRef | None
    stream_seq: int | None
    event_id: str | None
    occurred_at: str | None
    tenant_id: str | None
    producer_id: str | None
    source_system: str | None
    source_subsystem: str | None
    actor_type: str | None
    actor_id: str | None
    request_id: str | None
    correlation_id: str | None
    causation_id: str | None
    idempotency_key: str | None
    app_id: str | None
    env_id: str | None
    metadata: Mapping[str, str]
    tags: tuple[str, ...]


class ClassBinding(msgspec.Struct, frozen=True):
    """A class, its catalogue entry, and the function that decodes a payload into an instance."""

    cls: type
    entry: EventType
    decode: Callable[[Any], Any]


class Catalogue:
    """Event types bound to dataclasses, msgspec Structs or pydantic models, and their upcasters.

    Binding a class in the catalogue of a log declares its event type in the store. A catalogue
    without a log can be filled where the classes are defined, and declared with
    `log.catalogue.include(catalogue)` once a log is open.

    Example:
        catalogue = Catalogue()

        @catalogue.event_type("order.placed")
        class OrderPlaced(msgspec.Struct):
            order_id: str

        log.catalogue.include(catalogue)
        log.append([log.catalogue.new_event(OrderPlaced("o-1"))])
    """

    def __init__(self, log: BaseLog | None = None) -> None:
        self._log = log
        self._bindings: dict[str, dict[int, ClassBinding]] = {}
        self._classes: dict[type, EventType] = {}
        self._upcasters: dict[tuple[str, int], Upcaster] = {}

    # -- bind

    @overload
    def event_type(
        self, event_type: str, *, version: int = 1, kind: str | None = None
    ) -> Callable[[C], C]: ...
    @overload
    def event_type(
        self, event_type: str, cls: C, *, version: int = 1, kind: str | None = None
    ) -> C: ...
    def event_type(
        self, event_type: str, cls: C | None = None, *, version: int = 1, kind: str | None = None
    ) -> C | Callable[[C], C]:
        """Bind one version of an event type to a class; without a class, return a decorator.

        Args:
            event_type: The event type.
            cls: A dataclass, msgspec Struct or pydantic model; its JSON Schema is declared.
            version: The event version that the class describes.
            kind: The stream kind that the event type belongs to, if any.

        Raises:
            Conflict: The version is bound to another class, or declared with another schema.

        Example:
            @log.catalogue.event_type("order.placed")
            class OrderPlaced(msgspec.Struct):
                total: int
        """

        def bind(payload_class: C) -> C:
            schema = derive_schema(payload_class)
            entry = EventType(
                event_type=event_type, event_version=version, kind=kind, schema=schema
            )
            check_event_type(entry)
            self._adopt([ClassBinding(payload_class, entry, make_decoder(payload_class))])
            return payload_class

        return bind if cls is None else bind(cls)

    def upcaster(self, event_type: str, *, from_version: int) -> Callable[[U], U]:
        """Return a decorator for a function that turns a payload into the next version's.

        Args:
            event_type: The event type.
            from_version: The version of the payloads that the function receives.

        Raises:
            Conflict: The version has another upcaster.

        Example:
            @log.catalogue.upcaster("order.placed", from_version=1)
            def add_currency(payload):
                return {**payload, "currency": "EUR"}
        """
        check_event_type(EventType(event_type=event_type, event_version=from_version))

        def register(upcast: U) -> U:
            self._adopt_upcaster((event_type, from_version), upcast)
            return upcast

        return register

    def include(self, other: Catalogue) -> None:
        """Add all classes and upcasters of another catalogue.

        Raises:
            Conflict: This catalogue has another class or upcaster for the same version.

        Example:
            shop = Catalogue()
            shop.event_type("seat.booked", msgspec.defstruct("SeatBooked", [("seat", str)]))
            log.catalogue.include(shop)
        """
        self._adopt(
            [binding for versions in other._bindings.values() for binding in versions.values()]
        )
        for key, upcast in other._upcasters.items():
            self._adopt_upcaster(key, upcast)

    def _adopt(self, bindings: list[ClassBinding]) -> None:
        for binding in bindings:
            self._check_new(binding)
        # Declared before they are added: a refused declaration leaves the catalogue unchanged.
        if self._log is not None:
            self._log.declare(*[binding.entry for binding in bindings])
        for binding in bindings:
            versions = self._bindings.setdefault(binding.entry.event_type, {})
            versions[binding.entry.event_version] = binding
            self._classes[binding.cls] = binding.entry

    def _check_new(self, binding: ClassBinding) -> None:
        bound_entry = self._classes.get(binding.cls)
        if bound_entry is not None and bound_entry != binding.entry:
            raise _already_bound_error(binding.cls.__qualname__, bound_entry)
        entry = binding.entry
        bound_version = self._bindings.get(entry.event_type, {}).get(entry.event_version)
        if bound_version is not None and bound_version.entry != entry:
            raise _already_bound_error("another class", bound_version.entry)

    def _adopt_upcaster(self, key: tuple[str, int], upcast: Upcaster) -> None:
        if self._upcasters.get(key, upcast) is not upcast:
            msg = f"event type {key[0]!r} has another upcaster from version {key[1]}"
            raise Conflict(msg, details={"name": key[0], "from_version": key[1]})
        self._upcasters[key] = upcast

    # -- write

    def new_event(self, instance: object, **fields: Unpack[EventFields]) -> NewEvent:
        """Return a new event with an instance of a bound class as its payload.

        Args:
            instance: The instance.
            **fields: Other fields of `NewEvent`, such as `stream`.

        Raises:
            InvalidArgument: The class is not bound to an event type.

        Example:
            @log.catalogue.event_type("seat.booked")
            class SeatBooked(msgspec.Struct):
                seat: str

            log.append([log.catalogue.new_event(SeatBooked("12A"), stream=("flight", "LH1"))])
        """
        entry = self._find_entry(type(instance), "instance")
        return NewEvent(
            entry.event_type, _to_payload(instance), event_version=entry.event_version, **fields
        )

    # -- read

    @overload
    def decode(self, record: EventRecord | NewEvent) -> Any: ...
    @overload
    def decode(self, record: EventRecord | NewEvent, cls: type[T]) -> T: ...
    def decode(self, record: EventRecord | NewEvent, cls: type[T] | None = None) -> Any:
        """Return a record as an instance of the class that is bound to its event type.

        Args:
            record: The record, or an event that is not stored yet.
            cls: The class of the result, which type checkers then know; by default the one bound
                to the newest version. Older records are upcast to the version of the class.

        Raises:
            SchemaViolation: No class is bound, `cls` is bound to another event type, an upcaster
                is missing or failed, or the payload does not fit the class.
            InvalidArgument: `cls` is not bound to an event type.

        Example:
            @log.catalogue.event_type("order.placed")
            class OrderPlaced(msgspec.Struct):
                total: int

            for record in log.read(types=["order.placed"]):
                print(log.catalogue.decode(record, OrderPlaced).total)
        """
        binding = self._find_binding(record, cls)
        version = binding.entry.event_version
        payload = self.upcast(record, version)
        try:
            return binding.decode(payload)
        except SchemaViolation as error:
            problem = f"it does not fit {binding.cls.__name__}: {error.message}"
            raise _decode_error(record, version, problem) from error

    def _find_binding(self, record: EventRecord | NewEvent, cls: type | None) -> ClassBinding:
        """Return the binding of a class, by default of the newest version of the record's type."""
        versions = self._bindings.get(record.event_type, {})
        if cls is None:
            if not versions:
                raise _decode_error(record, None, "no class is bound to its event type")
            return versions[max(versions)]
        entry = self._find_entry(cls, "cls")
        if entry.event_type != record.event_type:
            problem = f"{cls.__name__} is bound to {entry.event_type!r}"
            raise _decode_error(record, None, problem)
        return versions[entry.event_version]

    def _find_entry(self, cls: type, argument: str) -> EventType:
        """Return the catalogue entry that a class is bound to."""
        entry = self._classes.get(cls)
        if entry is None:
            msg = (
                f"{cls.__qualname__} is not bound to an event type: bind it with "
                "catalogue.event_type"
            )
            raise InvalidArgument(msg, details={"argument": argument})
        return entry

    def upcast(self, record: EventRecord | NewEvent, to_version: int | None = None) -> Any:
        """Return a record's payload in a version, by default the newest known.

        Raises:
            SchemaViolation: The record is newer than that, or an upcaster is missing or failed.

        Example:
            payloads = [log.catalogue.upcast(record) for record in log.read()]
        """
        target = self.newest(record.event_type) if to_version is None else to_version
        if target is None:
            return record.payload
        if record.event_version > target:
            raise _decode_error(record, target, "it is newer than the versions known here")
        payload = record.payload
        for version in range(record.event_version, target):
            payload = self._upcast_once(record, version, payload)
        return payload

    def find_class(self, event_type: str) -> type | None:
        """Return the class that is bound to the newest version of an event type, or None.

        Example:
            payload_class = log.catalogue.find_class("order.placed")
        """
        versions = self._bindings.get(event_type)
        return versions[max(versions)].cls if versions else None

    def newest(self, event_type: str) -> int | None:
        """Return the newest version that is bound or produced by an upcaster, or None.

        Example:
            version = log.catalogue.newest("order.placed")
        """
        versions = set(self._bindings.get(event_type, ()))
        versions.update(start + 1 for name, start in self._upcasters if name == event_type)
        return max(versions, default=None)

    def _upcast_once(
        self, record: EventRecord | NewEvent, version: int, payload: dict[str, Any]
    ) -> dict[str, Any]:
        upcast = self._upcasters.get((record.event_type, version))
        if upcast is None:
            problem = f"there is no upcaster from version {version}"
            raise _decode_error(record, version + 1, problem)
        try:
            result = upcast(payload)
        except Exception as error:
            # The message may quote the payload, so only the type of the error is reported.
            problem = f"the upcaster from version {version} failed with {type(error).__name__}"
            raise _decode_error(record, version + 1, problem) from error
        if not isinstance(result, Mapping):
            problem = f"the upcaster from version {version} did not return a mapping"
            raise _decode_error(record, version + 1, problem)
        return dict(result)


def _to_payload(instance: Any) -> Any:
    if hasattr(instance, "model_dump"):
        return instance.model_dump(mode="json", by_alias=True)
    return msgspec.to_builtins(instance, str_keys=True)


def _already_bound_error(class_name: str, entry: EventType) -> Conflict:
    name = f"{entry.event_type} v{entry.event_version}"
    return Conflict(f"{class_name} is bound to {name} already", details={"name": name})


def _decode_error(
    record: EventRecord | NewEvent, to_version: int | None, problem: str
) -> SchemaViolation:
    target = "" if to_version is None else f" as version {to_version}"
    position = record.position if isinstance(record, EventRecord) else None
    place = "the new event" if position is None else f"the event at position {position}"
    msg = (
        f"{place} ({record.event_type!r} version {record.event_version}) cannot be decoded"
        f"{target}: {problem}"
    )
    details = {
        "position": position,
        "event_type": record.event_type,
        "event_version": record.event_version,
        "to_version": to_version,
    }
    return SchemaViolation(msg, details=details)
