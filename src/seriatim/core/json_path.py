"""JSON paths such as `$.facts[0].key`, which errors report instead of the value."""

from __future__ import annotations

import json
import re

ROOT = "$"

_is_identifier = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch


def child(path: str, key: str) -> str:
    """Return the path of the value under `key`; keys that are not identifiers are quoted."""
    return f"{path}.{key}" if _is_identifier(key) else f"{path}[{json.dumps(key)}]"


def item(path: str, index: int) -> str:
    """Return the path of an item of a list."""
    return f"{path}[{index}]"
