"""The HTTP reference pages, which `make reference` generates from the code."""

import inspect
from typing import Any

import msgspec

from seriatim.api.openapi import encode_openapi, make_openapi
from seriatim.api.routes import ROUTES, Route
from seriatim.core.errors import ALL_ERRORS
from seriatim.wire.problems import (
    STATUS_BY_CODE,
    TOO_MANY_REQUESTS,
    problem_from_error,
    status_for_error,
)
from tests.docs.error_examples import raise_documented_errors
from tests.docs.pages import ROOT

PAGE = ROOT / "docs/reference/http.md"
OPENAPI = ROOT / "docs/reference/openapi.json"
GROUPS = {
    "append_endpoints": "Append",
    "read_endpoints": "Read",
    "tail_endpoints": "Follow",
    "consumer_endpoints": "Consumers and projections",
    "operator_endpoints": "Operate",
    "access_endpoints": "Tokens and quotas",
    "handler_endpoints": "Handlers",
    "job_endpoints": "Jobs",
}
# Problems of every route, which the page lists once.
COMMON = (
    "backend_failure",
    "forbidden",
    "idempotency_key_reuse",
    "invalid_argument",
    "limit_exceeded",
    "timeout",
    "unauthorized",
)


def openapi_text() -> str:
    """Return the OpenAPI document as it is committed."""
    return encode_openapi().decode() + "\n"


def http_page() -> str:
    """Return the page with its generated parts updated and its other text unchanged."""
    text = PAGE.read_text("utf-8")
    for name, part in (("routes", _routes()), ("problems", _problems())):
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, after = text.partition(begin)[0], text.partition(end)[2]
        text = f"{before}{begin}\n\n{part.strip()}\n\n{end}{after}"
    return text


def _routes() -> str:
    parts = [_overview()]
    for module, title in GROUPS.items():
        routes = [route for route in ROUTES if route.handler.__module__.endswith(f".{module}")]
        parts += [f"## {title}\n", *(_route(route) for route in routes)]
    parts += ["## Schemas\n", *(_schema(name, one) for name, one in _schemas().items())]
    return "\n".join(parts)


def _schemas() -> dict[str, Any]:
    found: dict[str, Any] = make_openapi()["components"]["schemas"]
    return {_short(name): found[name] for name in sorted(found, key=_short)}


def _short(name: str) -> str:
    return name.rpartition(".")[2] if name.startswith("seriatim.wire") else name


def _anchor(heading: str) -> str:
    kept = "".join(one for one in heading.lower() if one.isalnum() or one in "_- ")
    return kept.replace(" ", "-")


def _overview() -> str:
    lines = ["| route | right | |", "|---|---|---|"]
    for route in ROUTES:
        link = f"[`{route.endpoint}`](#{_anchor(route.endpoint)})"
        right = "any token" if route.right is None else f"`{route.right}`"
        lines.append(f"| {link} | {right} | {_summary(route)} |")
    return "\n".join(lines) + "\n"


def _summary(route: Route) -> str:
    return (inspect.getdoc(route.handler) or "").partition("\n")[0]


def _route(route: Route) -> str:
    operation = make_openapi()["paths"][route.path][route.method.lower()]
    more = (inspect.getdoc(route.handler) or "").partition("\n")[2].strip()
    parts = [f"### {route.endpoint}\n", " ".join(filter(None, (_summary(route), more))) + "\n"]
    parts.append(_needs(route) + "\n")
    if route.body is not None:
        parts.append(f"Body: {_body(route.body)}\n")
    params = [parameter for parameter in operation["parameters"] if parameter["in"] == "query"]
    if params:
        parts += [f"{(route.params.__doc__ or '').strip()}\n", _parameters(params)]
    parts.append(_response(route) + "\n")
    own = [code for code in dict.fromkeys(route.problems) if code not in COMMON]
    if own:
        parts.append("Problems: " + ", ".join(f"[`{one}`](#{one})" for one in own) + ".\n")
    return "\n".join(parts)


def _needs(route: Route) -> str:
    if route.right is None:
        return "Accepts any token."
    text = f"Needs the right `{route.right}`"
    if route.every_tenant:
        text += " and a service token for all tenants"
    elif route.service:
        text += " and a service token"
    if route.all_types:
        text += "; refuses tokens that are restricted to event types"
    return f"{text}. Accepts `Idempotency-Key`." if route.writes else f"{text}."


def _body(kind: type[Any]) -> str:
    name = kind.__name__
    return f"[{name}](#{_anchor(name)})." if kind.__struct_fields__ else "`{}`."


def _response(route: Route) -> str:
    if route.stream:
        return "Response: 200, `text/event-stream`, or `application/x-ndjson` if `Accept` names it."
    assert route.response is not None
    name = route.response.__name__
    return f"Response: {route.status}, [{name}](#{_anchor(name)})."


def _parameters(params: list[Any]) -> str:
    lines = ["| parameter | type | default |", "|---|---|---|"]
    for param in params:
        default = "required" if param["required"] else _default(param["schema"])
        lines.append(f"| `{param['name']}` | {_type(param['schema'])} | {default} |")
    return "\n".join(lines) + "\n"


def _default(schema: Any) -> str:
    if schema.get("default") is None:
        return ""
    return f"`{msgspec.json.encode(schema['default']).decode()}`"


def _type(schema: Any) -> str:
    """Return a schema as text."""
    if "$ref" in schema:
        name = _short(schema["$ref"].rpartition("/")[2])
        return f"[{name}](#{_anchor(name)})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("prefixItems"):
        return "[" + ", ".join(_type(prefixitem) for prefixitem in schema["prefixItems"]) + "]"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        return f"object of {_type(inner)}" if isinstance(inner, dict) and inner else "object"
    return str(schema.get("type", "any JSON"))


def _schema(name: str, schema: Any) -> str:
    parts = [f"### {name}\n", str(schema.get("description", "")).strip() + "\n"]
    properties = schema.get("properties", {})
    if properties:
        lines = ["| field | type | default |", "|---|---|---|"]
        for field, inner in properties.items():
            default = "required" if field in schema.get("required", ()) else _default(inner)
            lines.append(f"| `{field}` | {_type(inner)} | {default} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _problems() -> str:
    lines = ["| code | status | a retry may help |", "|---|---|---|"]
    for kind in ALL_ERRORS:
        status = f"{STATUS_BY_CODE[kind.code]}"
        helps = "yes" if kind.retryable_by_default else "no"
        if kind.code == "limit_exceeded":
            status, helps = f"{status}, {TOO_MANY_REQUESTS}", f"at {TOO_MANY_REQUESTS}: yes"
        lines.append(f"| [`{kind.code}`](#{kind.code}) | {status} | {helps} |")
    descriptions = {kind.code: (kind.__doc__ or "").strip() for kind in ALL_ERRORS}
    lines.append("")
    by_code: dict[str, list[str]] = {}
    for error in raise_documented_errors():
        by_code.setdefault(error.code, []).append(_example(error))
    for code, message in descriptions.items():
        lines += [f"### {code}\n", f"{message}\n", *by_code[code]]
    return "\n".join(lines)


def _example(error: Any) -> str:
    text = msgspec.json.format(
        msgspec.json.encode(problem_from_error(error, "r-1")), indent=2
    ).decode()
    assert status_for_error(error) in (STATUS_BY_CODE[error.code], TOO_MANY_REQUESTS)
    return f"```json\n{text}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(http_page(), encoding="utf-8")
    OPENAPI.write_text(openapi_text(), encoding="utf-8")
