"""Write the bounds of a service into its description, in a form that client generators take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seriatim.api.service import ServiceSettings
from seriatim.core.ids import ID_BYTES_MAX, KEY_BYTES_MAX
from seriatim.core.limits import Limits

STREAMS_MAX = 100  # of one question for last events
SchemaBounds = Mapping[str, Mapping[str, Any]]


def parameter_bounds(limits: Limits, serving: ServiceSettings) -> SchemaBounds:
    """Return the bounds of query parameters by their name."""
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


def field_bounds(limits: Limits) -> Mapping[str, SchemaBounds]:
    """Return the bounds of the fields of bodies, by the name of their shape."""
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


def _text(longest: int) -> dict[str, Any]:
    return {"minLength": 1, "maxLength": longest}


def add_bounds(schema: dict[str, Any], bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with bounds; of one that may be null they are on the other side."""
    if "anyOf" not in schema:
        return {**schema, **bounds}
    choices = [one if one == {"type": "null"} else {**one, **bounds} for one in schema["anyOf"]]
    return {**schema, "anyOf": choices}


def add_component_bounds(components: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return the shapes with the bounds of their fields."""
    found = {name: dict(one) for name, one in components.items()}
    for shape, fields in field_bounds(limits).items():
        properties = dict(found[shape]["properties"])
        for name, bounds in fields.items():
            properties[name] = add_bounds(properties[name], bounds)
        found[shape]["properties"] = properties
    return found


def simplify_schema(value: Any) -> Any:
    """Return a schema without what generators stumble over, and with integers of 64 bits.

    A pair of texts is an array of two texts: `prefixItems` with `"items": false` says the same,
    and is understood by few.
    """
    if isinstance(value, list):
        return [simplify_schema(one) for one in value]
    if not isinstance(value, dict):
        return value
    made = {name: simplify_schema(inner) for name, inner in value.items()}
    if "prefixItems" in made:
        kinds = made.pop("prefixItems")
        same = all(one == kinds[0] for one in kinds)
        made["items"] = kinds[0] if same else {}
    if {} in made.get("anyOf", ()):  # of anything and null the first says it all
        del made["anyOf"]
    if "enum" in made and "type" not in made:
        texts = all(isinstance(one, str) for one in made["enum"])
        made["type"] = "string" if texts else "integer"
    if made.get("type") == "integer" and "format" not in made:
        made["format"] = "int64"
    return made
