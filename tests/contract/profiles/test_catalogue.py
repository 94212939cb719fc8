"""Event classes: declared in the store, converted to events, and decoded at any version."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest

import seriatim
from seriatim import EventType, NewEvent
from seriatim.log.catalogue import Catalogue


@dataclass
class SeatReserved:
    """A seat reservation of version one."""

    seat: str


@dataclass
class SeatReservedInRow:
    """A seat reservation of version two."""

    row: int
    letter: str


class SeatPriced(msgspec.Struct):
    """A price."""

    seat: str
    cents: int
    at: datetime


class SeatFreed(pydantic.BaseModel):
    """A seat that is free again."""

    seat: str = pydantic.Field(alias="seatNumber")
    at: datetime


@pytest.fixture
def catalogue(log: seriatim.Log) -> Catalogue:
    """The catalogue of a log with one version of a type."""
    log.catalogue.event_type("seat.reserved", SeatReserved)
    return log.catalogue


def upcast_to_row(payload: dict[str, Any]) -> dict[str, Any]:
    """Upcast a reservation from version one to version two."""
    return {"row": int(payload["seat"][:-1]), "letter": payload["seat"][-1]}


def test_a_class_is_declared_in_the_store(catalogue: Catalogue, log: seriatim.Log) -> None:
    """A8: the schema of a declared class applies to all appends of its type and version."""
    assert log.store.rules().types["seat.reserved", 1].schema is not None
    with pytest.raises(seriatim.SchemaViolation):
        log.append([NewEvent("seat.reserved", {"seat": 12})])
    with pytest.raises(seriatim.SchemaViolation):
        log.append([NewEvent("seat.reserved", {"seat": "12A"}, event_version=2)])

    log.append([NewEvent("seat.reserved", {"seat": "12A"})])


def test_repeated_declarations(catalogue: Catalogue, log: seriatim.Log) -> None:
    """A8: declaring a class again is accepted; another class for its type and version conflicts."""
    catalogue.event_type("seat.reserved", SeatReserved)
    with pytest.raises(seriatim.Conflict):
        catalogue.event_type("seat.reserved", SeatReservedInRow)
    with pytest.raises(seriatim.Conflict):
        catalogue.event_type("seat.taken", SeatReserved)

    log.declare(EventType(event_type="seat.sold", schema={"type": "object"}))
    with pytest.raises(seriatim.Conflict):
        catalogue.event_type("seat.sold", SeatReservedInRow)
    with pytest.raises(seriatim.InvalidArgument):
        catalogue.new_event(SeatReservedInRow(1, "A"))


@pytest.mark.parametrize(
    "instance",
    [
        SeatReserved("12A"),
        SeatPriced("12A", 900, datetime(2026, 3, 1, tzinfo=UTC)),
        SeatFreed(seatNumber="12A", at=datetime(2026, 3, 1, tzinfo=UTC)),
    ],
)
def test_instances_are_decoded_equal(log: seriatim.Log, instance: Any) -> None:
    """A8: an appended instance of a dataclass, Struct or model is decoded equal."""
    log.catalogue.event_type("seat.changed", type(instance), version=3)
    event = log.catalogue.new_event(instance, stream=("show", "s-1"), tags=("x",))
    (record,) = log.append([event]).records

    assert (record.event_type, record.event_version) == ("seat.changed", 3)
    assert (record.stream, record.tags) == (("show", "s-1"), ("x",))
    assert log.catalogue.decode(record) == instance


def test_a_class_is_bound_by_a_decorator(log: seriatim.Log) -> None:
    """A8: with a kind, the type joins that kind's closed catalogue."""
    log.declare(seriatim.StreamKind(name="hall", catalogue="closed"))

    @log.catalogue.event_type("hall.opened", kind="hall")
    class HallOpened(msgspec.Struct):
        name: str

    log.append([log.catalogue.new_event(HallOpened("main"), stream=("hall", "h-1"))])
    with pytest.raises(seriatim.SchemaViolation):
        log.append([NewEvent("hall.closed", {}, stream=("hall", "h-1"))])


def test_a_separate_catalogue_is_included(log: seriatim.Log) -> None:
    """A8: a catalogue made without a log is declared when a log includes it."""
    free = Catalogue()
    free.event_type("seat.reserved", SeatReserved)
    free.event_type("seat.reserved", SeatReservedInRow, version=2)
    free.upcaster("seat.reserved", from_version=1)(upcast_to_row)
    log.catalogue.include(free)
    log.catalogue.include(free)
    log.append([log.catalogue.new_event(SeatReserved("12A"))])

    assert log.store.rules().versions_of("seat.reserved") == {1, 2}
    view = log.for_tenant("acme")
    assert view.catalogue is log.catalogue
    assert [log.catalogue.decode(record) for record in log.read()] == [SeatReservedInRow(12, "A")]


def test_old_versions_are_decoded_as_the_newest(catalogue: Catalogue, log: seriatim.Log) -> None:
    """I5: events of older versions are decoded through a chain of upcasters."""
    log.append([catalogue.new_event(SeatReserved("12A"))])
    catalogue.event_type("seat.reserved", SeatReservedInRow, version=3)
    catalogue.upcaster("seat.reserved", from_version=1)(upcast_to_row)

    @catalogue.upcaster("seat.reserved", from_version=2)
    def lower(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "letter": payload["letter"].lower()}

    log.append([catalogue.new_event(SeatReservedInRow(1, "B"))])

    assert [catalogue.decode(record) for record in log.read()] == [
        SeatReservedInRow(12, "a"),
        SeatReservedInRow(1, "B"),
    ]
    first = next(log.read())
    assert catalogue.upcast(first) == {"row": 12, "letter": "a"}
    assert catalogue.upcast(first, 2) == {"row": 12, "letter": "A"}


def test_upcasting_needs_no_class(log: seriatim.Log) -> None:
    """I5: payloads without a bound class are upcast to the newest version."""
    log.append([NewEvent("seat.reserved", {"seat": "12A"}), NewEvent("noted", {"x": 1})])
    log.catalogue.upcaster("seat.reserved", from_version=1)(upcast_to_row)

    assert [log.catalogue.upcast(record) for record in log.read()] == [
        {"row": 12, "letter": "A"},
        {"x": 1},
    ]


def test_a_missing_upcaster_is_reported(catalogue: Catalogue, log: seriatim.Log) -> None:
    """I5: the error of a missing upcaster has position, type and versions."""
    log.append([catalogue.new_event(SeatReserved("12A"))])
    catalogue.event_type("seat.reserved", SeatReservedInRow, version=2)
    with pytest.raises(seriatim.SchemaViolation, match=r"position 1 .* version 1.* version 2") as e:
        catalogue.decode(next(log.read()))

    assert e.value.details == {
        "position": 1,
        "event_type": "seat.reserved",
        "event_version": 1,
        "to_version": 2,
    }


@pytest.mark.parametrize(
    ("upcast", "message"),
    [
        (lambda payload: {"row": int(payload["seat"])}, "failed with ValueError"),
        (lambda payload: payload["seat"], "did not return a mapping"),
        (lambda payload: {"row": payload["seat"], "letter": "A"}, "does not fit"),
    ],
)
def test_upcaster_failure_does_not_contain_the_value(
    catalogue: Catalogue, log: seriatim.Log, upcast: Any, message: str
) -> None:
    """I5: the error of a failing upcaster has the position and not the payload."""
    log.append([catalogue.new_event(SeatReserved("hidden"))])
    catalogue.event_type("seat.reserved", SeatReservedInRow, version=2)
    catalogue.upcaster("seat.reserved", from_version=1)(upcast)
    with pytest.raises(seriatim.SchemaViolation, match=message) as caught:
        catalogue.decode(next(log.read()))

    assert "hidden" not in str(caught.value.as_dict())
    assert caught.value.details["position"] == 1


def test_undecodable_events_are_reported(catalogue: Catalogue, log: seriatim.Log) -> None:
    """I5: decoding an unbound type, or a version newer than known, is an error."""
    log.append([NewEvent("noted", {})])
    log.declare(EventType(event_type="seat.reserved", event_version=9))
    log.append([NewEvent("seat.reserved", {}, event_version=9)])
    unbound, newer = log.read()

    with pytest.raises(seriatim.SchemaViolation, match="no class is bound"):
        catalogue.decode(unbound)
    with pytest.raises(seriatim.SchemaViolation, match="newer than the versions known"):
        catalogue.decode(newer)


def test_a_record_is_decoded_as_a_given_class(catalogue: Catalogue, log: seriatim.Log) -> None:
    """I5: a given class determines the version; a class of another type is refused."""
    catalogue.event_type("seat.reserved", SeatReservedInRow, version=2)
    catalogue.event_type("seat.priced", SeatPriced)
    catalogue.upcaster("seat.reserved", from_version=1)(upcast_to_row)
    old, new = log.append(
        [catalogue.new_event(one) for one in (SeatReserved("12A"), SeatReservedInRow(1, "B"))]
    ).records

    assert catalogue.decode(old, SeatReserved) == SeatReserved("12A")
    assert catalogue.decode(old, SeatReservedInRow) == SeatReservedInRow(12, "A")
    with pytest.raises(seriatim.SchemaViolation, match="newer"):
        catalogue.decode(new, SeatReserved)
    with pytest.raises(seriatim.SchemaViolation, match=r"SeatPriced is bound to 'seat.priced'"):
        catalogue.decode(old, SeatPriced)
    with pytest.raises(seriatim.InvalidArgument) as caught:
        catalogue.decode(old, SeatFreed)
    assert caught.value.details == {"argument": "cls"}


def test_upcasters_are_registered_once(catalogue: Catalogue) -> None:
    """A8: registering an upcaster again is accepted, another one for its version conflicts."""
    catalogue.upcaster("seat.reserved", from_version=1)(upcast_to_row)
    catalogue.upcaster("seat.reserved", from_version=1)(upcast_to_row)
    with pytest.raises(seriatim.Conflict):
        catalogue.upcaster("seat.reserved", from_version=1)(dict)
    with pytest.raises(seriatim.InvalidArgument):
        catalogue.upcaster("seat.reserved", from_version=0)


@pytest.mark.parametrize("cls", [dict, int, "SeatReserved"])
def test_only_classes_with_fields_are_bound(log: seriatim.Log, cls: Any) -> None:
    """A8: only a dataclass, Struct or model can be bound."""
    with pytest.raises(seriatim.InvalidArgument):
        log.catalogue.event_type("seat.reserved", cls)

    assert not log.store.rules().versions_of("seat.reserved")
