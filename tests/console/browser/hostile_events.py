"""Events whose every field holds text that must stay text."""

from __future__ import annotations

from typing import Any

SCRIPT = "<script>window.hacked=1</script>"
IMAGE = '"><img src=x onerror="window.hacked=1">'
ADDRESS = "javascript:window.hacked=1//"
TEMPLATE = "{{ 7*7 }}{% raw %}"
DIRECTION = "abc\u202edcba\u2066\u200f<b>x</b>"
QUOTES = "'\" onmouseover='window.hacked=1' x=`${1}` &lt;&amp;#60;"
TEXTS = (SCRIPT, IMAGE, ADDRESS, TEMPLATE, DIRECTION, QUOTES)
LONG_NAME = "n" * 10_000
LARGE_INTEGER = 9_007_199_254_740_993  # no JavaScript number is equal to it


def make_hostile_events() -> list[dict[str, Any]]:
    """Return events with hostile text in every field, a long name, and a large payload."""
    events = [_make_event(number, text) for number, text in enumerate(TEXTS)]
    events.append(
        {
            "event_type": "wide" + "w" * 500,
            "stream_type": "s" * 512,
            "stream_id": "i" * 512,
            "actor_type": "system",
            "actor_id": "a" * 512,
            "payload": {LONG_NAME: LARGE_INTEGER, "text": "x" * 10_000},
        }
    )
    events.append(
        {
            "event_type": "large",
            "stream_type": "order",
            "stream_id": "large",
            "payload": {"text": "<i>" + "y" * 1_048_000},
        }
    )
    return events


def _make_event(number: int, text: str) -> dict[str, Any]:
    return {
        "event_type": f"type {text}",
        "stream_type": f"kind {text}",
        "stream_id": f"{text} {number}",
        "event_id": f"{text} id {number}",
        "producer_id": text,
        "source_system": text,
        "source_subsystem": text,
        "actor_type": "human",
        "actor_id": text,
        "request_id": text,
        "correlation_id": f"{TEXTS[0]} correlation",
        "causation_id": f"{TEXTS[number - 1]} id {number - 1}" if number else text,
        "idempotency_key": f"{text} {number}",
        "app_id": text,
        "env_id": text,
        "metadata": {"word": text},
        "tags": [f"tag:{text}"],
        "payload": {text: [text, {"deep": text}], "exact": LARGE_INTEGER},
    }
