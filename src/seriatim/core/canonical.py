"""Canonical JSON: the one text of a value, its hash, and the refusal of what JSON has not."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import msgspec

from seriatim.core import paths
from seriatim.core.errors import Flaw
from seriatim.core.limits import DEFAULT_LIMITS, Limits

HASH_PREFIX = "sha256:"

_decode = msgspec.json.Decoder().decode
_SMALL_INT = 1 << 63
_INFINITY = float("inf")


def _as_plain(value: Any) -> Any:
    """Turn a subclass of a JSON scalar (a library's own float) into what JSON writes."""
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(type(value).__name__)


# Keys sorted by code point at every level, compact, UTF-8, shortest round-trip floats.
_ENCODER = msgspec.json.Encoder(order="deterministic", enc_hook=_as_plain)


def canonical_text(value: Any) -> str:
    """Return the canonical JSON text of a value that `check_json` has passed."""
    return _ENCODER.encode(value).decode()


def safe_text(value: Any, *, floats: bool = True, limits: Limits = DEFAULT_LIMITS) -> str:
    """Check a value and return its canonical text.

    What comes back equal from its own JSON is JSON: one trip through the codec passes the ordinary
    payload, and `check_json` judges, with a path, what it does not pass.
    """
    if floats:
        try:
            raw = _ENCODER.encode(value)
            if (
                b"\\u0000" not in raw
                and raw.count(b"{") + raw.count(b"[") <= limits.payload_depth
                and _decode(raw) == value
            ):
                return raw.decode()
        except (TypeError, ValueError, RecursionError):
            pass
    check_json(value, floats=floats, limits=limits)
    return canonical_text(value)


def text_hash(text: str) -> str:
    """Return `sha256:` and the hex digest of a canonical text."""
    return HASH_PREFIX + sha256(text.encode()).hexdigest()


def check_json(value: Any, *, floats: bool = True, limits: Limits = DEFAULT_LIMITS) -> None:
    """Refuse what JSON has not, and floats where a profile refuses them, with the JSON path."""
    try:
        _check(value, paths.ROOT, 1, floats, limits)
    except Flaw as flaw:
        if flaw.part == "shape":  # a float: what is no JSON at all is told first
            _check(value, paths.ROOT, 1, True, limits)
        raise


def _check(value: Any, path: str, depth: int, floats: bool, limits: Limits) -> None:
    kind = type(value)
    if kind is str:
        _check_text(value, path)
    elif kind is dict:
        limits.check("payload_depth", depth)
        for key, inner in value.items():
            if type(key) is not str:
                raise Flaw("json", path, "object keys must be strings")
            _check_text(key, path)
            _check(inner, paths.child(path, key), depth + 1, floats, limits)
    elif kind is list or kind is tuple:
        limits.check("payload_depth", depth)
        for index, inner in enumerate(value):
            _check(inner, paths.item(path, index), depth + 1, floats, limits)
    elif kind is int:
        _check_integer(value, limits)
    elif kind is float:
        _check_float(value, path, floats)
    elif value is not None and kind is not bool:
        _check_other(value, path, depth, floats, limits)


def _check_text(text: str, path: str) -> None:
    if "\0" in text:
        raise Flaw("json", path, "text must not hold U+0000")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Flaw("json", path, "text must not hold lone surrogates") from None


def _check_integer(value: int, limits: Limits) -> None:
    # A decimal digit takes more than three bits, so this never refuses a number in bounds.
    if -_SMALL_INT <= value < _SMALL_INT or value.bit_length() <= limits.integer_digits * 3:
        return
    if abs(value) >= 10**limits.integer_digits:
        limits.check("integer_digits", limits.integer_digits + 1)


def _check_float(value: float, path: str, floats: bool) -> None:
    if value != value or value in (_INFINITY, -_INFINITY):  # noqa: PLR0124 - NaN differs from itself
        raise Flaw("json", path, "NaN and infinities are not JSON")
    if not floats:
        raise Flaw("shape", path, "floats are refused here: use an integer or a decimal string")


def _check_other(value: Any, path: str, depth: int, floats: bool, limits: Limits) -> None:
    """Let plain subclasses of JSON's types pass (an OrderedDict); refuse everything else."""
    plain_types: tuple[Any, ...] = (str, int, float, list, dict)
    for plain in plain_types:
        if isinstance(value, plain):
            _check(plain(value), path, depth, floats, limits)
            return
    raise Flaw("json", path, f"{type(value).__name__} is not a JSON type")


class DuplicateKeyError(ValueError):
    """An object in JSON text has one key twice."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON text strictly: no key twice, no NaN, integers of any size kept exactly."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except DuplicateKeyError as error:
        raise Flaw("json", "$", str(error)) from None
    except (ValueError, RecursionError) as error:
        raise Flaw("json", "$", f"not valid JSON: {type(error).__name__}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        msg = "an object has the same key twice"
        raise DuplicateKeyError(msg)
    return found


def _constant(name: str) -> Any:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


def read_json(text: str | bytes) -> Any:
    """Parse canonical text that the log itself wrote: fast, integers of any size exact."""
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return json.loads(text)
