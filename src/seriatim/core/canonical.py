"""Canonical JSON: encode a value to its only text, hash it, and reject non-JSON values.

Equal values have equal canonical texts, so payload hashes can be compared across backends.
"""

from __future__ import annotations

import json
from hashlib import sha256
from math import isfinite
from typing import Any

import msgspec

from seriatim.core import json_path
from seriatim.core.errors import ValidationError
from seriatim.core.limits import DEFAULT_LIMITS, Limits

HASH_PREFIX = "sha256:"

_decode = msgspec.json.Decoder().decode
_SMALL_INT = 1 << 63


def _to_builtin(value: Any) -> Any:
    """Convert an instance of a subclass of str, int or float to the base class."""
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value)
    raise TypeError(type(value).__name__)


# Keys sorted by code point at every level, compact, UTF-8, shortest round-trip floats.
_ENCODER = msgspec.json.Encoder(order="deterministic", enc_hook=_to_builtin)


def canonical_text(value: Any) -> str:
    """Return the canonical JSON text of a value that `check_json` accepts.

    msgspec encodes NaN as null and does not check its input, so check untrusted values first or
    call `check_and_encode`.
    """
    return _ENCODER.encode(value).decode()


def check_and_encode(value: Any, *, floats: bool = True, limits: Limits = DEFAULT_LIMITS) -> str:
    """Check that a value is JSON within the limits, and return its canonical text.

    Args:
        value: The value to encode.
        floats: Whether floats are allowed.
        limits: The bounds on depth and integer size.

    Raises:
        ValidationError: The value is not JSON, with the JSON path of the problem.
        LimitExceeded: The value is nested too deeply or has too large an integer.
    """
    # Hot path: a value that equals its own decoded JSON is JSON. Encoding and decoding once is
    # faster than walking the value in Python; the walk then only explains what is wrong.
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


def hash_text(text: str) -> str:
    """Return the hash of a canonical text: `sha256:` and the hex digest."""
    return HASH_PREFIX + sha256(text.encode()).hexdigest()


def check_json(value: Any, *, floats: bool = True, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise unless a value is JSON within the limits.

    Args:
        value: The value to check.
        floats: Whether floats are allowed.
        limits: The bounds on depth and integer size.

    Raises:
        ValidationError: The value is not JSON, or has a float where none is allowed.
        LimitExceeded: The value is nested too deeply or has too large an integer.
    """
    try:
        _check_value(value, json_path.ROOT, 1, floats, limits)
    except ValidationError as problem:
        if problem.part == "shape":
            # A float was found first. A value that is not JSON at all has another error code,
            # which takes precedence, so look for one with floats allowed.
            _check_value(value, json_path.ROOT, 1, True, limits)
        raise


def _check_value(value: Any, path: str, depth: int, floats: bool, limits: Limits) -> None:
    value_type = type(value)
    if value_type is str:
        _check_text(value, path)
    elif value_type is dict:
        limits.check("payload_depth", depth)
        for key, member in value.items():
            if type(key) is not str:
                raise ValidationError("json", path, "object keys must be strings")
            _check_text(key, path)
            _check_value(member, json_path.child(path, key), depth + 1, floats, limits)
    elif value_type is list or value_type is tuple:
        limits.check("payload_depth", depth)
        for index, member in enumerate(value):
            _check_value(member, json_path.item(path, index), depth + 1, floats, limits)
    elif value_type is int:
        _check_integer(value, limits)
    elif value_type is float:
        _check_float(value, path, floats)
    elif value is not None and value_type is not bool:
        _check_subclass(value, path, depth, floats, limits)


def _check_text(text: str, path: str) -> None:
    # Postgres cannot store U+0000 in text and UTF-8 cannot encode lone surrogates.
    if "\0" in text:
        raise ValidationError("json", path, "text must not contain U+0000")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValidationError("json", path, "text must not contain lone surrogates") from None


def _check_integer(value: int, limits: Limits) -> None:
    # A decimal digit takes more than three bits, so a number this short in bits is in bounds.
    if -_SMALL_INT <= value < _SMALL_INT or value.bit_length() <= limits.integer_digits * 3:
        return
    if abs(value) >= 10**limits.integer_digits:
        limits.check("integer_digits", limits.integer_digits + 1)


def _check_float(value: float, path: str, floats: bool) -> None:
    if not isfinite(value):
        raise ValidationError("json", path, "NaN and infinities are not JSON")
    if not floats:
        raise ValidationError(
            "shape", path, "floats are not allowed here: use an integer or a decimal string"
        )


def _check_subclass(value: Any, path: str, depth: int, floats: bool, limits: Limits) -> None:
    """Accept subclasses of the JSON types, such as OrderedDict, and reject all other types."""
    bases: tuple[Any, ...] = (str, int, float, list, dict)
    for base in bases:
        if isinstance(value, base):
            _check_value(base(value), path, depth, floats, limits)
            return
    raise ValidationError("json", path, f"{type(value).__name__} is not a JSON type")


class DuplicateKeyError(ValueError):
    """An object in JSON text contains the same key twice."""


def parse_strict_json(text: str | bytes) -> Any:
    """Parse JSON text from a caller: reject duplicate keys and NaN, keep integers exact.

    Raises:
        ValidationError: The text is not valid JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_make_object, parse_constant=_reject_constant)
    except DuplicateKeyError as error:
        raise ValidationError("json", "$", str(error)) from None
    except (ValueError, RecursionError) as error:
        raise ValidationError("json", "$", f"not valid JSON: {type(error).__name__}") from None


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        msg = "an object contains the same key twice"
        raise DuplicateKeyError(msg)
    return members


def _reject_constant(name: str) -> Any:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


def decode_stored_json(text: str | bytes) -> Any:
    """Parse canonical text that the log wrote, quickly and with exact integers."""
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        # msgspec rejects integers over 4300 digits; json follows Python's configurable limit.
        return json.loads(text)
