"""JSON paths such as `$.facts[0].key`, by which errors say where without saying what."""

from __future__ import annotations

import json
import re

ROOT = "$"

_plain = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch


def child(path: str, key: str) -> str:
    """Return the path of the value under `key`; an odd key is quoted as JSON quotes it."""
    return f"{path}.{key}" if _plain(key) else f"{path}[{json.dumps(key)}]"


def item(path: str, index: int) -> str:
    """Return the path of a list's item."""
    return f"{path}[{index}]"
