"""Payload schemas of catalogue entries: made from classes, checked as JSON schemas, read back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import msgspec

from seriatim.core.errors import BackendFailure, Flaw, InvalidArgument, SchemaViolation
from seriatim.core.paths import ROOT, child, item

_ANNOTATIONS = frozenset(
    {"$comment", "default", "deprecated", "description", "discriminator", "examples", "title"}
)
_SCHEMA_MAPS = frozenset({"$defs", "definitions", "patternProperties", "properties"})


def compile_schema(schema: dict[str, Any]) -> Callable[[Any], None]:
    """Return a check that raises `Flaw` where a payload breaks the schema.

    References stay within the schema: nothing is ever fetched.
    """
    if not isinstance(schema, dict):
        raise _bad_schema("must be an object")
    validate = _validator(schema)

    def check(value: Any) -> None:
        try:
            validate(value)
        except ValueError as error:
            raise _flaw(error) from None

    return check


def _validator(schema: dict[str, Any]) -> Callable[[Any], None]:
    try:
        import jsonschema_rs  # noqa: PLC0415 - an extra
    except ImportError:
        msg = "JSON schemas need another package: pip install 'seriatim[schema]'"
        raise BackendFailure(msg, retryable=False) from None
    try:
        return jsonschema_rs.validator_for(schema, mask="the value", retriever=_refuse).validate
    except ValueError as error:  # the package's own errors are ValueErrors, too
        raise _bad_schema(str(getattr(error, "message", error))) from None


def _refuse(uri: str) -> Any:
    msg = f"references must stay within the schema, and {uri!r} does not"
    raise ValueError(msg)


def _bad_schema(problem: str) -> InvalidArgument:
    return InvalidArgument(f"the schema is invalid: {problem}", details={"argument": "schema"})


def _flaw(error: ValueError) -> Flaw:
    path = _path(getattr(error, "instance_path", ()))
    kind: Any = getattr(error, "kind", None)
    if hasattr(kind, "property"):
        return Flaw("shape", child(path, kind.property), "is required")
    # The messages of these kinds quote keys or items, which may be as secret as any value.
    if kind is None or hasattr(kind, "unexpected") or hasattr(kind, "error"):
        return Flaw("shape", path, "holds what the schema does not allow")
    return Flaw("shape", path, error.message)  # type: ignore[attr-defined]


def _path(steps: Any) -> str:
    path = ROOT
    for step in steps:
        path = item(path, step) if isinstance(step, int) else child(path, step)
    return path


def schema_of(cls: type) -> dict[str, Any]:
    """Return the JSON schema of a dataclass, a msgspec Struct or a pydantic model.

    Only what binds a payload is kept, in one order: a new docstring or default is no new schema.
    """
    try:
        made = _schema_made(cls)
    except (NameError, RuntimeError, TypeError, ValueError) as error:
        raise _bad_class(cls, f"has no JSON schema: {error}") from error
    bare: dict[str, Any] = _binding(made)
    return bare


def _schema_made(cls: Any) -> Any:
    if _is_pydantic(cls):
        return cls.model_json_schema()
    if _is_plain(cls):
        return msgspec.json.schema(cls)
    raise _bad_class(cls, "is no dataclass, msgspec Struct or pydantic model")


def _is_pydantic(cls: Any) -> bool:
    return isinstance(cls, type) and hasattr(cls, "model_json_schema")


def _is_plain(cls: Any) -> bool:
    return isinstance(cls, type) and (is_dataclass(cls) or issubclass(cls, msgspec.Struct))


def _bad_class(cls: Any, problem: str) -> InvalidArgument:
    name = getattr(cls, "__qualname__", type(cls).__name__)
    return InvalidArgument(f"{name} {problem}", details={"argument": "schema"})


def _binding(schema: Any) -> Any:
    """Drop annotations from a schema; names of properties are not keywords and stay."""
    if isinstance(schema, list):
        return [_binding(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    bare: dict[str, Any] = {}
    for key in sorted(schema.keys() - _ANNOTATIONS):
        value = schema[key]
        if key in _SCHEMA_MAPS:
            bare[key] = {name: _binding(value[name]) for name in sorted(value)}
        elif key == "required":
            bare[key] = sorted(value)
        else:
            bare[key] = value if key in {"const", "enum"} else _binding(value)
    return bare


def decoder_of(cls: type) -> Callable[[Any], Any]:
    """Return what turns a JSON value into an instance; a misfit is a `SchemaViolation`."""
    if _is_pydantic(cls):
        return lambda value: _pydantic_instance(cls, value)
    if _is_plain(cls):
        return lambda value: _plain_instance(cls, value)
    raise _bad_class(cls, "is no dataclass, msgspec Struct or pydantic model")


def _misfit(cls: type, path: str, problem: str) -> SchemaViolation:
    return SchemaViolation(f"{path}: {problem}", details={"path": path, "class": cls.__qualname__})


_MSGSPEC_PROBLEM = re.compile(r"(.*?)(?: - at `(?:key in )?(\$.*)`)?", re.DOTALL).fullmatch
_MSGSPEC_MISSING = re.compile(r"Object missing required field `(.*)`").fullmatch


def _plain_instance(cls: type, value: Any) -> Any:
    try:
        return msgspec.convert(value, cls, str_keys=True)
    except msgspec.ValidationError as error:
        found = _MSGSPEC_PROBLEM(str(error))
        problem, path = (found[1], found[2] or ROOT) if found else ("", ROOT)
        if missing := _MSGSPEC_MISSING(problem):
            raise _misfit(cls, child(path, missing[1]), "is required") from None
        # Other messages may quote the value: a wrong enum's, or the class's own.
        told = problem.startswith("Expected `") and error.__cause__ is None
        raise _misfit(cls, path, problem if told else f"does not fit {cls.__name__}") from None


def _pydantic_instance(cls: Any, value: Any) -> Any:
    try:
        return cls.model_validate_json(json.dumps(value))
    except ValueError as error:
        first = error.errors(include_url=False)[0]  # type: ignore[attr-defined]
    # Messages of a class's own validators may quote the value.
    told = first["type"] not in {"value_error", "assertion_error"}
    problem = first["msg"] if told else f"does not fit {cls.__name__}"
    raise _misfit(cls, _pydantic_path(value, first), problem)


def _pydantic_path(value: Any, error: dict[str, Any]) -> str:
    """Return where in the value it is; a location also names members of unions, which are not."""
    path = ROOT
    for step in error["loc"]:
        if isinstance(value, list) and isinstance(step, int):
            path, value = item(path, step), value[step]
        elif isinstance(value, dict) and (step in value or error["type"] == "missing"):
            path, value = child(path, step), value.get(step)
    return path
