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
    """The location of a seat."""

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


def schema_error(check: Callable[[Any], None], value: Any) -> ValidationError:
    """Return the error of a compiled schema."""
    with pytest.raises(ValidationError) as caught:
        check(value)
    return caught.value


def decode_error(cls: type, value: Any) -> SchemaViolation:
    """Return the error of decoding a value as a class."""
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
def test_payloads_are_validated(schema: dict[str, Any], value: Any, path: str) -> None:
    """A8: an invalid payload is refused with its path, without its value or key."""
    found = schema_error(compile_schema(schema), value)

    assert (found.part, found.location) == ("shape", path)
    assert SECRET not in str(found)
    assert str(10**40) not in str(found)


def test_valid_payloads_pass() -> None:
    """A8: a payload with the shape its entry declares passes."""
    check = compile_schema({"type": "object", "required": ["n"]})

    check({"n": 10**40, "more": [1.5, None]})


def test_invalid_json_is_a_schema_error() -> None:
    """A8: a value that is not JSON is a schema error."""
    assert schema_error(compile_schema({"items": {"type": "string"}}), [{1, 2}]).location == "$"


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
    """A8: an invalid schema is refused when it is declared."""
    with pytest.raises(InvalidArgument, match="schema is invalid"):
        compile_schema(schema)


@pytest.mark.parametrize(
    "reference", ["http://127.0.0.1:9/x", "https://localhost/x", "file:///etc/passwd", "x.json"]
)
def test_external_references_are_refused(reference: str) -> None:
    """A8: a reference to another document is refused, not fetched."""
    schema = {"$id": "https://example.com/a", "properties": {"a": {"$ref": reference}}}
    with pytest.raises(InvalidArgument, match="schema is invalid"):
        compile_schema(schema)


def test_references_within_a_schema_work() -> None:
    """A8: references within a schema, also recursive ones, are followed."""
    tree = {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}}}
    check = compile_schema({"$ref": "#/$defs/tree", "$defs": {"tree": tree}})

    check({"next": {"next": {}}})
    assert schema_error(check, {"next": {"next": 7}}).location == "$.next.next"


def test_missing_package_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """L3: without its package a schema is a backend failure with the install command."""
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(BackendFailure, match=r"pip install 'seriatim\[schema\]'") as caught:
        compile_schema({})

    assert not caught.value.retryable


@pytest.mark.parametrize("cls", SEATS)
def test_classes_give_schemas(cls: type) -> None:
    """A8: a schema is derived from a dataclass, a Struct or a pydantic model."""
    check = compile_schema(derive_schema(cls))

    check(SOUND)
    assert schema_error(check, {**SOUND, "seat": 7}).location == "$.seat"
    assert schema_error(check, {**SOUND, "place": {"row": "back"}}).location == "$.place.title"
    assert schema_error(check, {"seat": "12A"}).location == "$.place"


@pytest.mark.parametrize("cls", SEATS)
def test_schema_omits_descriptions_and_defaults(cls: type) -> None:
    """A8: descriptions and defaults of a class are not part of its schema."""
    made = derive_schema(cls)
    text = canonical_text(made)

    for word in ("reserved", "description", "default", "examples"):
        assert word not in text
    assert made["$defs"]["Place"]["properties"]["title"] == {"type": "string"}


def test_field_order_does_not_change_the_schema() -> None:
    """A8: the order of fields and their descriptions do not change the schema."""
    one = make_dataclass("Seat", [("a", int), ("b", str), ("c", str, "x")])
    other = make_dataclass("Seat", [("b", str), ("a", int), ("c", str, "y")])
    other.__doc__ = "Other words."
    third = make_dataclass("Seat", [("a", int), ("b", str), ("c", str)])

    assert derive_schema(one) == derive_schema(other)
    assert derive_schema(one) != derive_schema(third)


def test_schemas_are_the_same_in_every_process() -> None:
    """A8: the schema of a class is the same in every process."""
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
    """A Struct with a field that JSON cannot represent."""

    field: type


class UnreadableModel(pydantic.BaseModel):
    """A model with a field that JSON cannot represent."""

    field: Callable[[], None]


@pytest.mark.parametrize("cls", [int, dict, object, "text", None, SeatByStruct("1A", Place("x"))])
@pytest.mark.parametrize("use", [derive_schema, make_decoder])
def test_other_objects_are_refused(use: Callable[[Any], Any], cls: Any) -> None:
    """A8: an object that is no dataclass, Struct or model is an invalid argument."""
    with pytest.raises(
        InvalidArgument, match="is not a dataclass, msgspec Struct or pydantic model"
    ):
        use(cls)


@pytest.mark.parametrize("cls", [Unreadable, UnreadableModel])
def test_classes_without_a_schema_are_refused(cls: type) -> None:
    """A8: a class with a field that JSON cannot represent is an invalid argument."""
    with pytest.raises(InvalidArgument, match="has no JSON schema"):
        derive_schema(cls)


@pytest.mark.parametrize("cls", SEATS)
def test_payloads_are_decoded_into_instances(cls: Any) -> None:
    """A8: a payload is decoded into an instance of its class."""
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
def test_decode_errors_have_a_path(cls: type, value: Any, path: str) -> None:
    """A8: a payload that does not fit is a schema violation with its path, without the value."""
    found = decode_error(cls, value)

    assert found.details == {"path": path, "class": cls.__qualname__}
    assert found.message.startswith(f"{path}: ")
    assert SECRET not in found.message


def test_union_members_are_not_in_the_path() -> None:
    """A8: the path of an error does not contain the members of a union type."""
    assert decode_error(SeatByModel, {**SOUND, "kind": SECRET}).details["path"] == "$.kind"


class Rows(pydantic.BaseModel):
    """A model with a list."""

    rows: list[Row]


def test_items_are_in_the_path() -> None:
    """A8: the path of an error contains the index of a list item."""
    assert decode_error(Rows, {"rows": ["back", SECRET]}).details["path"] == "$.rows[1]"


class Wary(msgspec.Struct):
    """A Struct that refuses a word with an error that contains it."""

    word: str

    def __post_init__(self) -> None:
        msg = f"Expected `x`, not {self.word}"
        raise ValueError(msg)


class WaryModel(pydantic.BaseModel):
    """A model that refuses a word with an error that contains it."""

    word: str

    @pydantic.field_validator("word")
    @classmethod
    def refuse(cls, word: str) -> str:
        """Refuse everything."""
        msg = f"not {word}"
        raise ValueError(msg)


@pytest.mark.parametrize("cls", [Wary, WaryModel])
def test_messages_of_class_validators_are_omitted(cls: type) -> None:
    """A8: the message of a class's own validator, which may contain the value, is omitted."""
    assert SECRET not in decode_error(cls, {"word": SECRET}).message


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
    """A8: a payload that is valid by the schema of a class is decoded without loss."""
    payload = {"seat": seat, "place": {"title": title, "row": row.value}}
    payload["prices"] = {str(key): prices[key] for key in prices}
    compile_schema(derive_schema(cls))(payload)
    found = make_decoder(cls)(payload)

    assert (found.seat, found.place, found.prices) == (seat, Place(title, row), prices)
