"""The catalogue as Python classes: bind event types to them, make events, read old versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from seriatim.core.errors import Conflict, InvalidArgument, SchemaViolation
from seriatim.core.event import EventRecord, NewEvent
from seriatim.core.kinds import EventType, check_event_type
from seriatim.core.schema import decoder_of, schema_of

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog

C = TypeVar("C", bound=type)
Upcaster = Callable[[dict[str, Any]], Any]
U = TypeVar("U", bound=Upcaster)


class Binding(msgspec.Struct, frozen=True):
    """A class, the entry it stands for, and the way from a payload to an instance."""

    cls: type
    entry: EventType
    decode: Callable[[Any], Any]


class Catalogue:
    """Event types bound to dataclasses, msgspec Structs or pydantic models, and their upcasters.

    A log's own catalogue declares in the store as it binds. A free one, made where the classes
    are, is declared by `log.catalogue.include(free)` once a log is open.
    """

    def __init__(self, log: BaseLog | None = None) -> None:
        self._log = log
        self._bindings: dict[str, dict[int, Binding]] = {}
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
        """Bind an event type at one version to a class; without one, return a decorator."""

        def bind(bound: C) -> C:
            schema = schema_of(bound)
            entry = EventType(
                event_type=event_type, event_version=version, kind=kind, schema=schema
            )
            check_event_type(entry)
            self._adopt([Binding(bound, entry, decoder_of(bound))])
            return bound

        return bind if cls is None else bind(cls)

    def upcaster(self, event_type: str, *, from_version: int) -> Callable[[U], U]:
        """Decorate what turns a payload of one version into one of the next."""
        check_event_type(EventType(event_type=event_type, event_version=from_version))

        def register(upcast: U) -> U:
            self._adopt_upcaster((event_type, from_version), upcast)
            return upcast

        return register

    def include(self, other: Catalogue) -> None:
        """Take over what another catalogue binds, declaring all of it at once."""
        self._adopt([one for kept in other._bindings.values() for one in kept.values()])
        for key, upcast in other._upcasters.items():
            self._adopt_upcaster(key, upcast)

    def _adopt(self, bindings: list[Binding]) -> None:
        for one in bindings:
            self._check_new(one)
        if self._log is not None:
            self._log.declare(*[one.entry for one in bindings])
        for one in bindings:
            kept = self._bindings.setdefault(one.entry.event_type, {})
            kept[one.entry.event_version] = one
            self._classes[one.cls] = one.entry

    def _check_new(self, new: Binding) -> None:
        known = self._classes.get(new.cls)
        if known is not None and known != new.entry:
            raise _bound_already(new.cls.__qualname__, known)
        entry = new.entry
        stored = self._bindings.get(entry.event_type, {}).get(entry.event_version)
        if stored is not None and stored.entry != entry:
            raise _bound_already("another class", stored.entry)

    def _adopt_upcaster(self, key: tuple[str, int], upcast: Upcaster) -> None:
        if self._upcasters.get(key, upcast) is not upcast:
            msg = f"{key[0]!r} has another upcaster from version {key[1]}"
            raise Conflict(msg, details={"name": key[0], "from_version": key[1]})
        self._upcasters[key] = upcast

    # -- make

    def new_event(self, instance: Any, **fields: Any) -> NewEvent:
        """Return the event that an instance of a bound class says; `fields` go around it."""
        entry = self._classes.get(type(instance))
        if entry is None:
            msg = f"{type(instance).__qualname__} is bound to no event type"
            raise InvalidArgument(msg, details={"argument": "instance"})
        return NewEvent(
            entry.event_type, _payload(instance), event_version=entry.event_version, **fields
        )

    # -- read

    def decode(self, record: EventRecord) -> Any:
        """Return a record as an instance of the newest bound version of its event type."""
        bound = self._bindings.get(record.event_type)
        if not bound:
            raise _unreadable(record, None, "no class is bound to it")
        newest = max(bound)
        payload = self.upcast(record, newest)
        try:
            return bound[newest].decode(payload)
        except SchemaViolation as error:
            problem = f"it does not fit {bound[newest].cls.__name__}: {error.message}"
            raise _unreadable(record, newest, problem) from error

    def upcast(self, record: EventRecord, to_version: int | None = None) -> Any:
        """Return a record's payload as of a version, the newest known by default."""
        target = self.newest(record.event_type) if to_version is None else to_version
        if target is None:
            return record.data
        if record.event_version > target:
            raise _unreadable(record, target, "it is newer than this program knows")
        payload = record.data
        for version in range(record.event_version, target):
            payload = self._step(record, version, payload)
        return payload

    def newest(self, event_type: str) -> int | None:
        """Return the newest version that is bound or that an upcaster leads to, if any."""
        known = set(self._bindings.get(event_type, ()))
        known.update(start + 1 for name, start in self._upcasters if name == event_type)
        return max(known, default=None)

    def _step(self, record: EventRecord, version: int, payload: dict[str, Any]) -> dict[str, Any]:
        upcast = self._upcasters.get((record.event_type, version))
        if upcast is None:
            raise _unreadable(record, version + 1, f"no upcaster leads on from version {version}")
        try:
            made = upcast(payload)
        except Exception as error:
            # Its message may quote the payload, so only its type is told.
            problem = f"the upcaster from version {version} failed with {type(error).__name__}"
            raise _unreadable(record, version + 1, problem) from error
        if not isinstance(made, Mapping):
            problem = f"the upcaster from version {version} returned no object"
            raise _unreadable(record, version + 1, problem)
        return dict(made)


def _payload(instance: Any) -> Any:
    if hasattr(instance, "model_dump"):
        return instance.model_dump(mode="json", by_alias=True)
    return msgspec.to_builtins(instance, str_keys=True)


def _bound_already(what: str, entry: EventType) -> Conflict:
    name = f"{entry.event_type} v{entry.event_version}"
    return Conflict(f"{what} is bound to {name} already", details={"name": name})


def _unreadable(record: EventRecord, to_version: int | None, problem: str) -> SchemaViolation:
    aim = "" if to_version is None else f" as version {to_version}"
    msg = (
        f"the event at position {record.position} ({record.event_type!r} "
        f"version {record.event_version}) cannot be read{aim}: {problem}"
    )
    details = {
        "position": record.position,
        "event_type": record.event_type,
        "event_version": record.event_version,
        "to_version": to_version,
    }
    return SchemaViolation(msg, details=details)
