"""Payload schemas: validated, derived from classes, and decoded into instances."""

import enum
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.canonical import canonical_text
from seriatim.core.errors import BackendFailure, InvalidArgument, SchemaViolation, ValidationError
from seriatim.core.schema import compile_schema, derive_schema, make_decoder

SECRET = "hunter2-hunter2"


class Row(enum.Enum):
    """A row of seats."""

    FRONT = "front"
    BACK = "back"


@dataclass
class Place:
    """Where a seat is."""

    title: str
    row: Row = Row.FRONT


@dataclass
class SeatByDataclass:
    """A seat was reserved."""

    seat: str
    place: Place
    held_until: datetime | None = None
    prices: dict[int, int] = field(default_factory=dict)


class SeatByStruct(msgspec.Struct):
    """A seat was reserved."""

    seat: Annotated[str, msgspec.Meta(min_length=2)]
    place: Place
    held_until: datetime | None = None
    prices: dict[int, int] = {}


class SeatByModel(pydantic.BaseModel):
    """A seat was reserved."""

    model_config = pydantic.ConfigDict(strict=True)

    seat: str = pydantic.Field(min_length=2, description="Its number.", examples=["12A"])
    place: Place
    held_until: datetime | None = None
    prices: dict[int, int] = {}
    kind: int | Literal["standing"] = 1


SEATS = [SeatByDataclass, SeatByStruct, SeatByModel]
SOUND = {
    "seat": "12A",
    "place": {"title": "Balcony", "row": "back"},
    "held_until": "2026-01-01T00:00:00Z",
    "prices": {"1": 20},
}


def flaw(check: Callable[[Any], None], value: Any) -> ValidationError:
    """Return what a compiled schema finds."""
    with pytest.raises(ValidationError) as caught:
        check(value)
    return caught.value


def misfit(cls: type, value: Any) -> SchemaViolation:
    """Return how a class refuses a value."""
    with pytest.raises(SchemaViolation) as caught:
        make_decoder(cls)(value)
    return caught.value


@pytest.mark.parametrize(
    ("schema", "value", "path"),
    [
        ({"type": "object"}, 7, "$"),
        ({"required": ["seat"]}, {}, "$.seat"),
        ({"properties": {"a": {"required": ["odd key"]}}}, {"a": {}}, '$.a["odd key"]'),
        ({"items": {"type": "string"}}, ["a", 7], "$[1]"),
        ({"properties": {"odd key": {"enum": ["a"]}}}, {"odd key": SECRET}, '$["odd key"]'),
        ({"properties": {"a": {"const": 1}}}, {"a": SECRET}, "$.a"),
        ({"properties": {"a": {"maxLength": 3}}}, {"a": SECRET}, "$.a"),
        ({"properties": {"a": {"pattern": "^x"}}}, {"a": SECRET}, "$.a"),
        ({"properties": {"a": {"anyOf": [{"type": "null"}]}}}, {"a": SECRET}, "$.a"),
        ({"properties": {"a": {"not": {"type": "string"}}}}, {"a": SECRET}, "$.a"),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [SECRET, SECRET]}, "$.a"),
        ({"properties": {"a": {"contains": {"const": 1}}}}, {"a": [SECRET]}, "$.a"),
        ({"properties": {"a": {"maximum": 3}}}, {"a": 10**40}, "$.a"),
        ({"properties": {"a": {}}, "additionalProperties": False}, {SECRET: 1}, "$"),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {SECRET: 1}, "$"),
        ({"prefixItems": [{}], "unevaluatedItems": False}, [1, SECRET], "$"),
        ({"propertyNames": {"maxLength": 3}}, {SECRET: 1}, "$"),
    ],
)
def test_payloads_are_checked(schema: dict[str, Any], value: Any, path: str) -> None:
    """A8: a payload against its schema is refused with its path, never with the value or a key."""
    found = flaw(compile_schema(schema), value)

    assert (found.part, found.location) == ("shape", path)
    assert SECRET not in str(found)
    assert str(10**40) not in str(found)


def test_sound_payloads_pass() -> None:
    """A8: a payload with the shape its entry declares passes."""
    check = compile_schema({"type": "object", "required": ["n"]})

    check({"n": 10**40, "more": [1.5, None]})


def test_invalid_json_is_a_schema_error() -> None:
    """A8: a value that is no JSON is a flaw like any other."""
    assert flaw(compile_schema({"items": {"type": "string"}}), [{1, 2}]).location == "$"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nothing"},
        {"type": 5},
        {"pattern": "("},
        {"$schema": "urn:unknown"},
        {"$ref": "#/$defs/absent"},
        {"enum": {1, 2}},
        [],
        True,
        "text",
    ],
)
def test_invalid_schemas_are_refused(schema: Any) -> None:
    """A8: an entry with an invalid schema is not declared."""
    with pytest.raises(InvalidArgument, match="schema is invalid"):
        compile_schema(schema)


@pytest.mark.parametrize(
    "reference", ["http://127.0.0.1:9/x", "https://localhost/x", "file:///etc/passwd", "x.json"]
)
def test_nothing_is_fetched(reference: str) -> None:
    """A8: a schema refers to itself only; a reference to elsewhere is refused, not followed."""
    schema = {"$id": "https://example.com/a", "properties": {"a": {"$ref": reference}}}
    with pytest.raises(InvalidArgument, match="schema is invalid"):
        compile_schema(schema)


def test_references_within_a_schema_work() -> None:
    """A8: definitions, also recursive ones, are part of the schema."""
    tree = {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}}}
    check = compile_schema({"$ref": "#/$defs/tree", "$defs": {"tree": tree}})

    check({"next": {"next": {}}})
    assert flaw(check, {"next": {"next": 7}}).location == "$.next.next"


def test_missing_package_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """L3: a missing package is a backend failure with the install command."""
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(BackendFailure, match=r"pip install 'seriatim\[schema\]'") as caught:
        compile_schema({})

    assert not caught.value.retryable


@pytest.mark.parametrize("cls", SEATS)
def test_classes_give_schemas(cls: type) -> None:
    """A8: an entry may be bound to a dataclass, a Struct or a pydantic model."""
    check = compile_schema(derive_schema(cls))

    check(SOUND)
    assert flaw(check, {**SOUND, "seat": 7}).location == "$.seat"
    assert flaw(check, {**SOUND, "place": {"row": "back"}}).location == "$.place.title"
    assert flaw(check, {"seat": "12A"}).location == "$.place"


@pytest.mark.parametrize("cls", SEATS)
def test_schema_omits_descriptions_and_defaults(cls: type) -> None:
    """A8: words about a class are no rules: a new docstring or default is not another schema."""
    made = derive_schema(cls)
    text = canonical_text(made)

    for word in ("reserved", "description", "default", "examples"):
        assert word not in text
    assert made["$defs"]["Place"]["properties"]["title"] == {"type": "string"}


def test_field_order_does_not_change_the_schema() -> None:
    """A8: the same fields in another order, with other words, are the same schema."""
    one = make_dataclass("Seat", [("a", int), ("b", str), ("c", str, "x")])
    other = make_dataclass("Seat", [("b", str), ("a", int), ("c", str, "y")])
    other.__doc__ = "Other words."
    third = make_dataclass("Seat", [("a", int), ("b", str), ("c", str)])

    assert derive_schema(one) == derive_schema(other)
    assert derive_schema(one) != derive_schema(third)


def test_schemas_are_the_same_in_every_process() -> None:
    """A8: every process that declares a class declares the same schema."""
    code = (
        "from tests.unit.core.test_schema import SEATS, canonical_text, derive_schema\n"
        "print(*(canonical_text(derive_schema(cls)) for cls in SEATS))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            cwd=Path(__file__).parents[3],
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }

    assert texts == {" ".join(canonical_text(derive_schema(cls)) for cls in SEATS).encode() + b"\n"}


class Unreadable(msgspec.Struct):
    """A Struct with a field that JSON has not."""

    field: type


class UnreadableModel(pydantic.BaseModel):
    """A model with a field that JSON has not."""

    field: Callable[[], None]


@pytest.mark.parametrize("cls", [int, dict, object, "text", None, SeatByStruct("1A", Place("x"))])
@pytest.mark.parametrize("use", [derive_schema, make_decoder])
def test_other_things_are_refused(use: Callable[[Any], Any], cls: Any) -> None:
    """A8: anything but such a class is an invalid argument."""
    with pytest.raises(
        InvalidArgument, match="is not a dataclass, msgspec Struct or pydantic model"
    ):
        use(cls)


@pytest.mark.parametrize("cls", [Unreadable, UnreadableModel])
def test_classes_without_a_schema_are_refused(cls: type) -> None:
    """A8: a class whose fields JSON has not is an invalid argument."""
    with pytest.raises(InvalidArgument, match="has no JSON schema"):
        derive_schema(cls)


@pytest.mark.parametrize("cls", SEATS)
def test_payloads_become_instances(cls: Any) -> None:
    """A8: payloads appended as a class are read back as its instances."""
    found = make_decoder(cls)(SOUND)

    assert isinstance(found, cls)
    assert found.place == Place("Balcony", Row.BACK)
    assert found.held_until == datetime(2026, 1, 1, tzinfo=UTC)
    assert found.prices == {1: 20}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([], "$"),
        ({**SOUND, "seat": 7}, "$.seat"),
        ({"seat": "12A"}, "$.place"),
        ({**SOUND, "place": {"title": 7}}, "$.place.title"),
        ({**SOUND, "place": {}}, "$.place.title"),
        ({**SOUND, "place": {"title": "x", "row": SECRET}}, "$.place.row"),
        ({**SOUND, "held_until": SECRET}, "$.held_until"),
    ],
)
@pytest.mark.parametrize("cls", SEATS)
def test_misfits_say_where(cls: type, value: Any, path: str) -> None:
    """A8: a payload that does not fit is a schema violation with its path, without the value."""
    found = misfit(cls, value)

    assert found.details == {"path": path, "class": cls.__qualname__}
    assert found.message.startswith(f"{path}: ")
    assert SECRET not in found.message


def test_union_members_are_not_in_the_path() -> None:
    """A8: the path leads through the value, not through the class."""
    assert misfit(SeatByModel, {**SOUND, "kind": SECRET}).details["path"] == "$.kind"


class Rows(pydantic.BaseModel):
    """A model with a list."""

    rows: list[Row]


def test_items_are_in_the_path() -> None:
    """A8: the path counts the items of a list."""
    assert misfit(Rows, {"rows": ["back", SECRET]}).details["path"] == "$.rows[1]"


class Wary(msgspec.Struct):
    """A Struct that refuses a word, and says it."""

    word: str

    def __post_init__(self) -> None:
        msg = f"Expected `x`, not {self.word}"
        raise ValueError(msg)


class WaryModel(pydantic.BaseModel):
    """A model that refuses a word, and says it."""

    word: str

    @pydantic.field_validator("word")
    @classmethod
    def refuse(cls, word: str) -> str:
        """Refuse everything."""
        msg = f"not {word}"
        raise ValueError(msg)


@pytest.mark.parametrize("cls", [Wary, WaryModel])
def test_messages_of_class_validators_are_not_repeated(cls: type) -> None:
    """A8: messages of a class's own validators may contain the value and are omitted."""
    assert SECRET not in misfit(cls, {"word": SECRET}).message


@given(
    st.text(min_size=2),
    st.text(),
    st.sampled_from(Row),
    st.dictionaries(st.integers(), st.integers()),
)
@pytest.mark.parametrize("cls", SEATS)
def test_instances_round_trip(
    cls: type, seat: str, title: str, row: Row, prices: dict[int, int]
) -> None:
    """A8: a payload that passes its schema decodes to an equal instance."""
    payload = {"seat": seat, "place": {"title": title, "row": row.value}}
    payload["prices"] = {str(key): prices[key] for key in prices}
    compile_schema(derive_schema(cls))(payload)
    found = make_decoder(cls)(payload)

    assert (found.seat, found.place, found.prices) == (seat, Place(title, row), prices)
