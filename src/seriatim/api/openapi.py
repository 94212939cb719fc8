"""The description of the API (OpenAPI 3.1), made of the routes themselves."""

from __future__ import annotations

import inspect
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec

from seriatim.api.routes import ROUTES, Route
from seriatim.api.schema_bounds import (
    SchemaBounds,
    add_component_bounds,
    parameter_bounds,
    simplify_schema,
)
from seriatim.api.service import SMALL_BODY_BYTES, VERSION, ServiceSettings
from seriatim.core.errors import ALL_ERRORS
from seriatim.core.limits import DEFAULT_LIMITS, Limits
from seriatim.wire.problems import CONTENT_TYPE, STATUS_BY_CODE, TOO_MANY_REQUESTS, Problem

_SERVING = ServiceSettings()
_REF = "#/components/schemas/{name}"
# What any route may answer, whatever it is about.
_ALWAYS = ("unauthorized", "forbidden", "invalid_argument", "backend_failure", "timeout")
_SAID = {kind.code: (kind.__doc__ or "").strip() for kind in ALL_ERRORS}


@cache
def encode_openapi(limits: Limits = DEFAULT_LIMITS, serving: ServiceSettings = _SERVING) -> bytes:
    """Return the whole description as JSON, with the bounds of this service."""
    return msgspec.json.format(msgspec.json.encode(make_openapi(limits, serving)), indent=2)


@cache
def make_openapi(
    limits: Limits = DEFAULT_LIMITS, serving: ServiceSettings = _SERVING
) -> dict[str, Any]:
    """Return the whole description as a value, with the bounds of this service."""
    components = add_component_bounds(_components()[1], limits)
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        operation = _operation(route, limits, serving)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    for path in ("/health", "/ready"):
        paths[path] = {"get": _open_operation(path)}
    made: dict[str, Any] = simplify_schema(_document(paths, components))
    return made


def _document(paths: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Seriatim",
            "version": VERSION,
            "description": "One ordered, idempotent, replayable event log over HTTP.",
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
    """Return a reference to every type of a body or an answer, and what they refer to."""
    types: list[type[Any]] = [Problem]
    for route in ROUTES:
        types += [kind for kind in (route.body, route.response) if kind is not None]
    references, components = msgspec.json.schema_components(types, ref_template=_REF)
    return dict(zip(types, references, strict=True)), components


def _operation(route: Route, limits: Limits, serving: ServiceSettings) -> dict[str, Any]:
    said = inspect.getdoc(route.handler) or ""
    summary, _, more = said.partition("\n")
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{route.path[4:].replace('/', '_')}",
        "summary": summary,
        "description": f"{more.strip()}\n\n{_needs(route)}".strip(),
        "parameters": [
            *_parameters(route, parameter_bounds(limits, serving)),
            *_headers(route),
        ],
        "responses": _responses(route),
    }
    if route.body is not None:
        schema = _components()[0][route.body]
        bound = serving.request_bytes if route.raw else min(serving.request_bytes, SMALL_BODY_BYTES)
        operation["requestBody"] = {
            "description": f"At most {bound} bytes, also when it was gzip (Content-Encoding).",
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _needs(route: Route) -> str:
    """Say which tokens a route is for."""
    if route.right is None:
        return "Any token will do."
    needs = [f"the right `{route.right}`"]
    if route.service:
        needs.append("the token of a service")
    if route.every_tenant:
        needs.append("a token for all tenants")
    if route.all_types:
        needs.append("a token for all event types")
    return f"Needs {', '.join(needs)}."


def _open_operation(path: str) -> dict[str, Any]:
    what = "the process" if path == "/health" else "the store"
    schema = {"type": "object", "properties": {"status": {"type": "string"}}}
    return {
        "operationId": path[1:],
        "summary": f"Say whether {what} answers.",
        "security": [],
        "responses": {
            "200": {"description": "It does.", "content": {"application/json": {"schema": schema}}},
            **({} if path == "/health" else _problems(("backend_failure", "timeout"))),
        },
    }


def _parameters(route: Route, bounds: SchemaBounds) -> list[dict[str, Any]]:
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


def _parameter(name: str, schema: dict[str, Any], bounds: SchemaBounds) -> dict[str, Any]:
    """Return the schema of a parameter with its bounds, if they are of its kind."""
    known = bounds.get(name, {})
    kind = {"minLength": "string", "maxItems": "array"}.get(next(iter(known), ""))
    numeric = schema.get("type") in ("integer", "number")
    if kind == schema.get("type") or (kind is None and numeric and schema.get("default") != -1):
        return {**schema, **known}
    return schema


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what a parameter may be when it is there."""
    kept = {name: value for name, value in schema.items() if (name, value) != ("default", None)}
    if "anyOf" in kept:
        choices = [one for one in kept.pop("anyOf") if one != {"type": "null"}]
        return {**kept, **choices[0]} if len(choices) == 1 else {**kept, "anyOf": choices}
    return kept


def _headers(route: Route) -> list[dict[str, Any]]:
    found = [
        _header("seriatim-tenant", "Which tenant, for tokens that are for all of them."),
    ]
    if route.writes:
        found.append(
            _header("idempotency-key", "Twins with this key run once; the same body only.", 200)
        )
    if route.stream:
        found.append(_header("last-event-id", "The position to go on from."))
    return found


def _header(name: str, what: str, longest: int = 512) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": longest}
    return {"name": name, "in": "header", "description": what, "schema": schema}


def _responses(route: Route) -> dict[str, Any]:
    good: dict[str, Any] = {"description": HTTPStatus(route.status).phrase}
    if route.stream:
        text = {"schema": {"type": "string"}}
        good["content"] = {"text/event-stream": text, "application/x-ndjson": text}
    elif route.response is not None:
        schema = _components()[0][route.response]
        good["content"] = {"application/json": {"schema": schema}}
    codes = (*_ALWAYS, *route.problems, "limit_exceeded")
    if route.writes:
        codes = (*codes, "idempotency_key_reuse")
    found = {str(route.status): good, **_problems(codes)}
    if route.body is not None:
        schema = _components()[0][Problem]
        found["415"] = {
            "description": "The coding of the body is not understood: gzip is, or none.",
            "content": {CONTENT_TYPE: {"schema": schema}},
        }
    return found


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
            "description": " ".join(f"`{code}`: {_SAID[code]}" for code in found),
            "content": {CONTENT_TYPE: {"schema": schema}},
        }
        for status, found in sorted(by_status.items())
    }
