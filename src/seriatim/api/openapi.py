"""The OpenAPI 3.1 document, generated from the routes, with the bounds of the service."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec

from seriatim.api.read_endpoints import STREAMS_MAX
from seriatim.api.routes import ROUTES, Route
from seriatim.api.service import SMALL_BODY_BYTES, VERSION, ServiceSettings
from seriatim.core.errors import ALL_ERRORS
from seriatim.core.ids import ID_BYTES_MAX, KEY_BYTES_MAX
from seriatim.core.limits import DEFAULT_LIMITS, Limits
from seriatim.wire.problems import CONTENT_TYPE, STATUS_BY_CODE, TOO_MANY_REQUESTS, Problem

_SchemaBounds = Mapping[str, Mapping[str, Any]]
_SERVING = ServiceSettings()
_REF = "#/components/schemas/{name}"
# Errors that every route may return.
_COMMON_ERRORS = ("unauthorized", "forbidden", "invalid_argument", "backend_failure", "timeout")
_ERROR_DESCRIPTIONS = {kind.code: (kind.__doc__ or "").strip() for kind in ALL_ERRORS}


@cache
def encode_openapi(limits: Limits = DEFAULT_LIMITS, serving: ServiceSettings = _SERVING) -> bytes:
    """Return the document as JSON."""
    return msgspec.json.format(msgspec.json.encode(make_openapi(limits, serving)), indent=2)


@cache
def make_openapi(
    limits: Limits = DEFAULT_LIMITS, serving: ServiceSettings = _SERVING
) -> dict[str, Any]:
    """Return the document.

    Args:
        limits: The bounds of the log.
        serving: The bounds of the service.
    """
    components = _add_component_bounds(_make_components()[1], limits)
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        operation = _make_operation(route, limits, serving)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    for path in ("/health", "/ready"):
        paths[path] = {"get": _make_public_operation(path)}
    document: dict[str, Any] = _simplify_schema(_make_document(paths, components))
    return document


def _make_document(paths: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Seriatim",
            "version": VERSION,
            "description": "This API appends to and reads an ordered, idempotent, replayable log.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


@cache
def _make_components() -> tuple[dict[type[Any], Any], dict[str, Any]]:
    """Return a reference to the type of each body and response, and their schemas."""
    types: list[type[Any]] = [Problem]
    for route in ROUTES:
        types += [kind for kind in (route.body, route.response) if kind is not None]
    references, components = msgspec.json.schema_components(types, ref_template=_REF)
    return dict(zip(types, references, strict=True)), components


def _make_operation(route: Route, limits: Limits, serving: ServiceSettings) -> dict[str, Any]:
    text = inspect.getdoc(route.handler) or ""
    summary, _, rest = text.partition("\n")
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{route.path[4:].replace('/', '_')}",
        "summary": summary,
        "description": f"{rest.strip()}\n\n{_describe_access(route)}".strip(),
        "parameters": [
            *_make_parameters(route, _find_parameter_bounds(limits, serving)),
            *_make_header_parameters(route),
        ],
        "responses": _make_responses(route),
    }
    if route.body is not None:
        schema = _make_components()[0][route.body]
        bound = serving.request_bytes if route.raw else min(serving.request_bytes, SMALL_BODY_BYTES)
        operation["requestBody"] = {
            "description": f"The body has at most {bound} bytes after decompression. "
            "It may be compressed with gzip, as `Content-Encoding` states.",
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _describe_access(route: Route) -> str:
    """Describe the tokens that a route accepts."""
    if route.right is None:
        return "Accepts any token."
    requirements = [f"the right `{route.right}`"]
    if route.service:
        requirements.append("the token of a service")
    if route.every_tenant:
        requirements.append("a token for all tenants")
    if route.all_types:
        requirements.append("a token for all event types")
    return f"Needs {', '.join(requirements)}."


def _make_public_operation(path: str) -> dict[str, Any]:
    description = "the process" if path == "/health" else "the store"
    schema = {"type": "object", "properties": {"status": {"type": "string"}}}
    return {
        "operationId": path[1:],
        "summary": f"Report whether {description} responds.",
        "security": [],
        "responses": {
            "200": {"description": "OK", "content": {"application/json": {"schema": schema}}},
            **(
                {} if path == "/health" else _make_problem_responses(("backend_failure", "timeout"))
            ),
        },
    }


def _make_parameters(route: Route, bounds: _SchemaBounds) -> list[dict[str, Any]]:
    if route.params is None:
        return []
    _, components = msgspec.json.schema_components([route.params], ref_template=_REF)
    schema = components[route.params.__name__]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": _add_parameter_bounds(name, _remove_null(inner), bounds),
        }
        for name, inner in schema.get("properties", {}).items()
    ]


def _add_parameter_bounds(
    name: str, schema: dict[str, Any], bounds: _SchemaBounds
) -> dict[str, Any]:
    """Add the bounds of a parameter to its schema, if they fit its type."""
    parameter_bounds = bounds.get(name, {})
    kind = {"minLength": "string", "maxItems": "array"}.get(next(iter(parameter_bounds), ""))
    numeric = schema.get("type") in ("integer", "number")
    # A default of -1 includes entries at position 0: the minimum of positions does not apply.
    if kind == schema.get("type") or (kind is None and numeric and schema.get("default") != -1):
        own = {name: schema[name] for name in parameter_bounds if name in schema}
        return {**schema, **parameter_bounds, **own}
    return schema


def _remove_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from the schema of a parameter: an absent parameter is left out."""
    remaining = {
        name: value for name, value in schema.items() if (name, value) != ("default", None)
    }
    if "anyOf" in remaining:
        choices = [choice for choice in remaining.pop("anyOf") if choice != {"type": "null"}]
        return {**remaining, **choices[0]} if len(choices) == 1 else {**remaining, "anyOf": choices}
    return remaining


def _make_header_parameters(route: Route) -> list[dict[str, Any]]:
    headers = [
        _make_header_parameter(
            "seriatim-tenant",
            "The tenant of the request, which only a token for all tenants chooses.",
        ),
    ]
    if route.writes:
        headers.append(
            _make_header_parameter(
                "idempotency-key",
                "Requests with the same key and body run once and receive the same response.",
                200,
            )
        )
    if route.stream:
        headers.append(
            _make_header_parameter("last-event-id", "The tail continues after this position.")
        )
    return headers


def _make_header_parameter(name: str, description: str, max_length: int = 512) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": max_length}
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _make_responses(route: Route) -> dict[str, Any]:
    success: dict[str, Any] = {"description": HTTPStatus(route.status).phrase}
    if route.stream:
        text = {"schema": {"type": "string"}}
        success["content"] = {"text/event-stream": text, "application/x-ndjson": text}
    elif route.response is not None:
        schema = _make_components()[0][route.response]
        success["content"] = {"application/json": {"schema": schema}}
    codes = (*_COMMON_ERRORS, *route.problems, "limit_exceeded")
    if route.writes:
        codes = (*codes, "idempotency_key_reuse")
    responses = {str(route.status): success, **_make_problem_responses(codes)}
    if route.body is not None:
        schema = _make_components()[0][Problem]
        responses["415"] = {
            "description": "The content coding of the body is not supported: send gzip, or none.",
            "content": {CONTENT_TYPE: {"schema": schema}},
        }
    return responses


def _make_problem_responses(codes: tuple[str, ...]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in codes:
        statuses = (
            (STATUS_BY_CODE[code], TOO_MANY_REQUESTS)
            if code == "limit_exceeded"
            else (STATUS_BY_CODE[code],)
        )
        for status in statuses:
            if code not in by_status.setdefault(status, []):
                by_status[status].append(code)
    schema = _make_components()[0][Problem]
    return {
        str(status): {
            "description": " ".join(
                f"`{code}`: {_ERROR_DESCRIPTIONS[code]}" for code in listed_codes
            ),
            "content": {CONTENT_TYPE: {"schema": schema}},
        }
        for status, listed_codes in sorted(by_status.items())
    }


# -- bounds


def _find_parameter_bounds(limits: Limits, serving: ServiceSettings) -> _SchemaBounds:
    """Return the bounds of query parameters by name."""
    position = {"minimum": 0}
    return {
        "limit": {"minimum": 1, "maximum": limits.page},
        "after": position,
        "until": position,
        "since_seq": position,
        "position": position,
        "epoch": {"minimum": 1},
        "wait_s": {"minimum": 0, "maximum": serving.wait_max_s},
        "timeout_s": {"minimum": 0, "maximum": serving.wait_max_s},
        "keep_alive_s": {"minimum": 0.01, "maximum": 60},
        "types": {"maxItems": limits.predicates},
        "tags": {"maxItems": limits.tags},
        **dict.fromkeys(("event_id", "stream_type", "stream_id"), _text_bounds(ID_BYTES_MAX)),
    }


def _find_field_bounds(limits: Limits) -> Mapping[str, _SchemaBounds]:
    """Return the bounds of the fields of bodies, by schema and field."""
    page = {"minimum": 1, "maximum": limits.page}
    events = {"minItems": 1, "maxItems": limits.append_events}
    key = _text_bounds(KEY_BYTES_MAX)
    return {
        "AppendBody": {
            "events": events,
            "conditions": {"maxItems": limits.conditions},
            "idempotency_key": key,
        },
        "AppendIfBody": {"events": events, "idempotency_key": key},
        "AppendsBody": {"appends": {"maxItems": limits.append_events}},
        "QueryBody": {"limit": page, "after": {"minimum": 0}, "head": {"minimum": 0}},
        "SelectBody": {"limit": page, "after": {"minimum": 0}, "until": {"minimum": 0}},
        "StreamsBody": {"streams": {"maxItems": STREAMS_MAX}},
        "TailBody": {
            "after": {"minimum": 0},
            "keep_alive_s": {"minimum": 0.01, "maximum": 60},
            "types": {"maxItems": limits.predicates},
            "tags": {"maxItems": limits.tags},
        },
        "WireEvent": {
            "event_type": _text_bounds(ID_BYTES_MAX),
            "event_id": _text_bounds(ID_BYTES_MAX),
            "stream_type": _text_bounds(ID_BYTES_MAX),
            "stream_id": _text_bounds(ID_BYTES_MAX),
            "idempotency_key": key,
            "metadata": {"maxProperties": limits.metadata_entries},
            "tags": {"maxItems": limits.tags},
        },
    }


def _text_bounds(max_length: int) -> dict[str, Any]:
    return {"minLength": 1, "maxLength": max_length}


def _add_bounds(schema: dict[str, Any], bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Add bounds to a schema; of a nullable schema, to the alternative that is not null."""
    if "anyOf" not in schema:
        return {**schema, **bounds}
    choices = [
        choice if choice == {"type": "null"} else {**choice, **bounds} for choice in schema["anyOf"]
    ]
    return {**schema, "anyOf": choices}


def _add_component_bounds(components: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Add the bounds of fields to the schemas of bodies."""
    schemas = {name: dict(component) for name, component in components.items()}
    for schema_name, fields in _find_field_bounds(limits).items():
        properties = dict(schemas[schema_name]["properties"])
        for name, bounds in fields.items():
            properties[name] = _add_bounds(properties[name], bounds)
        schemas[schema_name]["properties"] = properties
    return schemas


def _simplify_schema(value: Any) -> Any:
    """Rewrite a schema so that client generators support it, with integers of 64 bits.

    Few generators know `prefixItems`: a pair of strings becomes an array of two strings.
    """
    if isinstance(value, list):
        return [_simplify_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    simplified = {name: _simplify_schema(inner) for name, inner in value.items()}
    if "prefixItems" in simplified:
        item_schemas = simplified.pop("prefixItems")
        same = all(item == item_schemas[0] for item in item_schemas)
        simplified["items"] = item_schemas[0] if same else {}
    if {} in simplified.get("anyOf", ()):  # anything includes null
        del simplified["anyOf"]
    if "enum" in simplified and "type" not in simplified:
        texts = all(isinstance(item, str) for item in simplified["enum"])
        simplified["type"] = "string" if texts else "integer"
    if simplified.get("type") == "integer" and "format" not in simplified:
        simplified["format"] = "int64"
    return simplified
