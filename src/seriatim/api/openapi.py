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
    components = _add_component_bounds(_components()[1], limits)
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        operation = _operation(route, limits, serving)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    for path in ("/health", "/ready"):
        paths[path] = {"get": _open_operation(path)}
    document: dict[str, Any] = _simplify_schema(_document(paths, components))
    return document


def _document(paths: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Seriatim",
            "version": VERSION,
            "description": "An ordered, idempotent, replayable event log over HTTP.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


@cache
def _components() -> tuple[dict[type[Any], Any], dict[str, Any]]:
    """Return a reference to the type of each body and response, and their schemas."""
    types: list[type[Any]] = [Problem]
    for route in ROUTES:
        types += [kind for kind in (route.body, route.response) if kind is not None]
    references, components = msgspec.json.schema_components(types, ref_template=_REF)
    return dict(zip(types, references, strict=True)), components


def _operation(route: Route, limits: Limits, serving: ServiceSettings) -> dict[str, Any]:
    text = inspect.getdoc(route.handler) or ""
    summary, _, rest = text.partition("\n")
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{route.path[4:].replace('/', '_')}",
        "summary": summary,
        "description": f"{rest.strip()}\n\n{_needs(route)}".strip(),
        "parameters": [
            *_parameters(route, _parameter_bounds(limits, serving)),
            *_headers(route),
        ],
        "responses": _responses(route),
    }
    if route.body is not None:
        schema = _components()[0][route.body]
        bound = serving.request_bytes if route.raw else min(serving.request_bytes, SMALL_BODY_BYTES)
        operation["requestBody"] = {
            "description": f"At most {bound} bytes after decompression (Content-Encoding: gzip).",
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _needs(route: Route) -> str:
    """Describe the tokens that a route accepts."""
    if route.right is None:
        return "Accepts any token."
    needs = [f"the right `{route.right}`"]
    if route.service:
        needs.append("the token of a service")
    if route.every_tenant:
        needs.append("a token for all tenants")
    if route.all_types:
        needs.append("a token for all event types")
    return f"Needs {', '.join(needs)}."


def _open_operation(path: str) -> dict[str, Any]:
    description = "the process" if path == "/health" else "the store"
    schema = {"type": "object", "properties": {"status": {"type": "string"}}}
    return {
        "operationId": path[1:],
        "summary": f"Report whether {description} responds.",
        "security": [],
        "responses": {
            "200": {"description": "OK", "content": {"application/json": {"schema": schema}}},
            **({} if path == "/health" else _problems(("backend_failure", "timeout"))),
        },
    }


def _parameters(route: Route, bounds: _SchemaBounds) -> list[dict[str, Any]]:
    if route.params is None:
        return []
    (schema,), components = msgspec.json.schema_components([route.params], ref_template=_REF)
    del schema
    known = components[route.params.__name__]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in known.get("required", ()),
            "schema": _parameter(name, _without_null(inner), bounds),
        }
        for name, inner in known.get("properties", {}).items()
    ]


def _parameter(name: str, schema: dict[str, Any], bounds: _SchemaBounds) -> dict[str, Any]:
    """Add the bounds of a parameter to its schema, if they fit its type."""
    known = bounds.get(name, {})
    kind = {"minLength": "string", "maxItems": "array"}.get(next(iter(known), ""))
    numeric = schema.get("type") in ("integer", "number")
    if kind == schema.get("type") or (kind is None and numeric and schema.get("default") != -1):
        return {**schema, **known}
    return schema


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from the schema of a parameter: an absent parameter is left out."""
    kept = {name: value for name, value in schema.items() if (name, value) != ("default", None)}
    if "anyOf" in kept:
        choices = [one for one in kept.pop("anyOf") if one != {"type": "null"}]
        return {**kept, **choices[0]} if len(choices) == 1 else {**kept, "anyOf": choices}
    return kept


def _headers(route: Route) -> list[dict[str, Any]]:
    headers = [
        _header("seriatim-tenant", "The tenant, for tokens of all tenants."),
    ]
    if route.writes:
        headers.append(
            _header("idempotency-key", "Requests with the same key and body run once.", 200)
        )
    if route.stream:
        headers.append(_header("last-event-id", "The position to continue from."))
    return headers


def _header(name: str, description: str, max_length: int = 512) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": max_length}
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _responses(route: Route) -> dict[str, Any]:
    good: dict[str, Any] = {"description": HTTPStatus(route.status).phrase}
    if route.stream:
        text = {"schema": {"type": "string"}}
        good["content"] = {"text/event-stream": text, "application/x-ndjson": text}
    elif route.response is not None:
        schema = _components()[0][route.response]
        good["content"] = {"application/json": {"schema": schema}}
    codes = (*_COMMON_ERRORS, *route.problems, "limit_exceeded")
    if route.writes:
        codes = (*codes, "idempotency_key_reuse")
    headers = {str(route.status): good, **_problems(codes)}
    if route.body is not None:
        schema = _components()[0][Problem]
        headers["415"] = {
            "description": "The content coding of the body is not supported: send gzip, or none.",
            "content": {CONTENT_TYPE: {"schema": schema}},
        }
    return headers


def _problems(codes: tuple[str, ...]) -> dict[str, Any]:
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
    schema = _components()[0][Problem]
    return {
        str(status): {
            "description": " ".join(f"`{code}`: {_ERROR_DESCRIPTIONS[code]}" for code in headers),
            "content": {CONTENT_TYPE: {"schema": schema}},
        }
        for status, headers in sorted(by_status.items())
    }


# -- bounds


def _parameter_bounds(limits: Limits, serving: ServiceSettings) -> _SchemaBounds:
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
        **dict.fromkeys(("event_id", "stream_type", "stream_id"), _text(ID_BYTES_MAX)),
    }


def _field_bounds(limits: Limits) -> Mapping[str, _SchemaBounds]:
    """Return the bounds of the fields of bodies, by schema and field."""
    page = {"minimum": 1, "maximum": limits.page}
    events = {"minItems": 1, "maxItems": limits.append_events}
    key = _text(KEY_BYTES_MAX)
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
            "event_type": _text(ID_BYTES_MAX),
            "event_id": _text(ID_BYTES_MAX),
            "stream_type": _text(ID_BYTES_MAX),
            "stream_id": _text(ID_BYTES_MAX),
            "idempotency_key": key,
            "metadata": {"maxProperties": limits.metadata_entries},
            "tags": {"maxItems": limits.tags},
        },
    }


def _text(max_length: int) -> dict[str, Any]:
    return {"minLength": 1, "maxLength": max_length}


def _add_bounds(schema: dict[str, Any], bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Add bounds to a schema; of a nullable schema, to the alternative that is not null."""
    if "anyOf" not in schema:
        return {**schema, **bounds}
    choices = [one if one == {"type": "null"} else {**one, **bounds} for one in schema["anyOf"]]
    return {**schema, "anyOf": choices}


def _add_component_bounds(components: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Add the bounds of fields to the schemas of bodies."""
    headers = {name: dict(one) for name, one in components.items()}
    for schema_name, fields in _field_bounds(limits).items():
        properties = dict(headers[schema_name]["properties"])
        for name, bounds in fields.items():
            properties[name] = _add_bounds(properties[name], bounds)
        headers[schema_name]["properties"] = properties
    return headers


def _simplify_schema(value: Any) -> Any:
    """Rewrite a schema so that client generators support it, with integers of 64 bits.

    Few generators know `prefixItems`: a pair of strings becomes an array of two strings.
    """
    if isinstance(value, list):
        return [_simplify_schema(one) for one in value]
    if not isinstance(value, dict):
        return value
    document = {name: _simplify_schema(inner) for name, inner in value.items()}
    if "prefixItems" in document:
        item_schemas = document.pop("prefixItems")
        same = all(one == item_schemas[0] for one in item_schemas)
        document["items"] = item_schemas[0] if same else {}
    if {} in document.get("anyOf", ()):  # anything includes null
        del document["anyOf"]
    if "enum" in document and "type" not in document:
        texts = all(isinstance(one, str) for one in document["enum"])
        document["type"] = "string" if texts else "integer"
    if document.get("type") == "integer" and "format" not in document:
        document["format"] = "int64"
    return document
