"""Payload schemas: derive them from classes, validate payloads, and decode to instances."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import msgspec

from seriatim.core.errors import BackendFailure, InvalidArgument, SchemaViolation, ValidationError
from seriatim.core.json_path import ROOT, child, item

_ANNOTATIONS = frozenset(
    {"$comment", "default", "deprecated", "description", "discriminator", "examples", "title"}
)
_SCHEMA_MAPS = frozenset({"$defs", "definitions", "patternProperties", "properties"})


def compile_schema(schema: dict[str, Any]) -> Callable[[Any], None]:
    """Compile a JSON schema into a function that validates a payload.

    References must stay within the schema: nothing is ever fetched.

    Returns:
        A function that raises `ValidationError` for a payload that violates the schema.

    Raises:
        InvalidArgument: The schema is invalid.
        BackendFailure: The package for JSON schemas is not installed.
    """
    if not isinstance(schema, dict):
        raise _schema_error("must be an object")
    validate = _build_validator(schema)

    def check(value: Any) -> None:
        try:
            validate(value)
        except ValueError as error:
            raise _to_validation_error(error) from None

    return check


def _build_validator(schema: dict[str, Any]) -> Callable[[Any], None]:
    try:
        import jsonschema_rs  # noqa: PLC0415 - an optional dependency
    except ImportError:
        msg = "JSON schemas require jsonschema_rs: run pip install 'seriatim[schema]'"
        raise BackendFailure(msg, retryable=False) from None
    try:
        return jsonschema_rs.validator_for(
            schema, mask="the value", retriever=_reject_reference
        ).validate
    except ValueError as error:  # jsonschema_rs errors are ValueErrors too
        raise _schema_error(str(getattr(error, "message", error))) from None


def _reject_reference(uri: str) -> Any:
    msg = f"references must stay within the schema: {uri!r} does not"
    raise ValueError(msg)


def _schema_error(problem: str) -> InvalidArgument:
    return InvalidArgument(f"the schema is invalid: {problem}", details={"argument": "schema"})


def _to_validation_error(error: ValueError) -> ValidationError:
    path = _format_path(getattr(error, "instance_path", ()))
    kind: Any = getattr(error, "kind", None)
    if hasattr(kind, "property"):
        return ValidationError("shape", child(path, kind.property), "is required")
    # The messages of these kinds quote keys or items, which may be secrets like any value.
    if kind is None or hasattr(kind, "unexpected") or hasattr(kind, "error"):
        return ValidationError("shape", path, "is not allowed by the schema")
    return ValidationError("shape", path, str(getattr(error, "message", error)))


def _format_path(steps: Any) -> str:
    path = ROOT
    for step in steps:
        path = item(path, step) if isinstance(step, int) else child(path, step)
    return path


def derive_schema(cls: type) -> dict[str, Any]:
    """Return the JSON schema of a dataclass, a msgspec Struct or a pydantic model.

    Annotations such as descriptions and defaults are removed and keys are sorted, so that a new
    docstring or default does not change the schema.

    Raises:
        InvalidArgument: The class has no JSON schema.
    """
    try:
        schema = _generate_schema(cls)
    except (NameError, RuntimeError, TypeError, ValueError) as error:
        raise _class_error(cls, f"has no JSON schema: {error}") from error
    stripped: dict[str, Any] = _strip_annotations(schema)
    return stripped


def _generate_schema(cls: Any) -> Any:
    if _is_pydantic(cls):
        return cls.model_json_schema()
    if _is_msgspec_type(cls):
        return msgspec.json.schema(cls)
    raise _class_error(cls, "is not a dataclass, msgspec Struct or pydantic model")


def _is_pydantic(cls: Any) -> bool:
    return isinstance(cls, type) and hasattr(cls, "model_json_schema")


def _is_msgspec_type(cls: Any) -> bool:
    return isinstance(cls, type) and (is_dataclass(cls) or issubclass(cls, msgspec.Struct))


def _class_error(cls: Any, problem: str) -> InvalidArgument:
    name = getattr(cls, "__qualname__", type(cls).__name__)
    return InvalidArgument(f"{name} {problem}", details={"argument": "schema"})


def _strip_annotations(schema: Any) -> Any:
    """Remove annotations from a schema; names of properties are not keywords and stay."""
    if isinstance(schema, list):
        return [_strip_annotations(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    stripped: dict[str, Any] = {}
    for key in sorted(schema.keys() - _ANNOTATIONS):
        value = schema[key]
        if key in _SCHEMA_MAPS:
            stripped[key] = {name: _strip_annotations(value[name]) for name in sorted(value)}
        elif key == "required":
            stripped[key] = sorted(value)
        else:
            stripped[key] = value if key in {"const", "enum"} else _strip_annotations(value)
    return stripped


def make_decoder(cls: type) -> Callable[[Any], Any]:
    """Return a function that converts a JSON value to an instance of a class.

    The function raises `SchemaViolation`, with the path, for a value that does not fit the class.

    Raises:
        InvalidArgument: The class is not a dataclass, msgspec Struct or pydantic model.
    """
    if _is_pydantic(cls):
        return lambda value: _convert_with_pydantic(cls, value)
    if _is_msgspec_type(cls):
        return lambda value: _convert_with_msgspec(cls, value)
    raise _class_error(cls, "is not a dataclass, msgspec Struct or pydantic model")


def _violation_error(cls: type, path: str, problem: str) -> SchemaViolation:
    return SchemaViolation(f"{path}: {problem}", details={"path": path, "class": cls.__qualname__})


_match_msgspec_problem = re.compile(r"(.*?)(?: - at `(?:key in )?(\$.*)`)?", re.DOTALL).fullmatch
_match_missing_field = re.compile(r"Object missing required field `(.*)`").fullmatch


def _convert_with_msgspec(cls: type, value: Any) -> Any:
    try:
        return msgspec.convert(value, cls, str_keys=True)
    except msgspec.ValidationError as error:
        match = _match_msgspec_problem(str(error))
        problem, path = (match[1], match[2] or ROOT) if match else ("", ROOT)
        if missing := _match_missing_field(problem):
            raise _violation_error(cls, child(path, missing[1]), "is required") from None
        # Other messages may quote the value, such as those of enums or of __post_init__.
        is_safe = problem.startswith("Expected `") and error.__cause__ is None
        raise _violation_error(
            cls, path, problem if is_safe else f"does not fit {cls.__name__}"
        ) from None


def _convert_with_pydantic(cls: Any, value: Any) -> Any:
    try:
        return cls.model_validate_json(json.dumps(value))
    except ValueError as error:
        pydantic_error: Any = error
        first = pydantic_error.errors(include_url=False)[0]
    # Messages of a class's own validators may quote the value.
    is_safe = first["type"] not in {"value_error", "assertion_error"}
    problem = first["msg"] if is_safe else f"does not fit {cls.__name__}"
    raise _violation_error(cls, _find_pydantic_path(value, first), problem)


def _find_pydantic_path(value: Any, error: dict[str, Any]) -> str:
    """Return the JSON path of an error; steps that name members of a union are skipped."""
    path = ROOT
    for step in error["loc"]:
        if isinstance(value, list) and isinstance(step, int):
            path, value = item(path, step), value[step]
        elif isinstance(value, dict) and (step in value or error["type"] == "missing"):
            path, value = child(path, step), value.get(step)
    return path
