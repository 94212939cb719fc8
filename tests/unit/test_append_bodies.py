"""Bodies of appends: the fast parser accepts and refuses the same bodies as the exact one."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.api import request_bodies
from seriatim.api.request_bodies import BodyParser, parse_json_body
from seriatim.core.errors import SeriatimError
from seriatim.core.limits import DEFAULT_LIMITS
from seriatim.wire.messages import AppendBody, AppendsBody

KEYS = st.sampled_from(["a", "b", "a b", "ab", "é", "\n", "\\", '"'])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(blacklist_categories=["Cs"]), max_size=4),
)
BLANK = st.sampled_from(["", " ", "\n", "\t "])


@st.composite
def json_texts(draw: st.DrawFn, depth: int = 3) -> str:
    """Return JSON text with white space anywhere, in which an object may repeat a key."""
    blank = draw(BLANK)
    kind = draw(st.sampled_from(["scalar", "list", "object"] if depth else ["scalar"]))
    if kind == "scalar":
        return blank + json.dumps(draw(SCALARS), ensure_ascii=draw(st.booleans())) + draw(BLANK)
    inner = json_texts(depth - 1)
    if kind == "list":
        return f"{blank}[{','.join(draw(st.lists(inner, max_size=3)))}{draw(BLANK)}]"
    members = draw(st.lists(st.tuples(KEYS, inner), max_size=3))
    text = ",".join(
        f"{draw(BLANK)}{json.dumps(key)}{draw(BLANK)}:{value}" for key, value in members
    )
    return f"{blank}{{{text}{draw(BLANK)}}}{draw(BLANK)}"


def is_refused(act: Any, *arguments: Any) -> bool:
    """Return whether a function raises a Seriatim error."""
    try:
        act(*arguments)
    except SeriatimError:
        return True
    return False


@given(json_texts())
def test_repeated_keys_are_found_at_any_size(text: str) -> None:
    """A2: both parsers refuse the same texts, and return equal values for the others."""
    raw = text.encode()
    with pytest.MonkeyPatch.context() as patch:
        wrong = is_refused(request_bodies._parse_exactly, raw)
        assert is_refused(parse_json_body, raw) == wrong
        assert wrong or parse_json_body(raw) == request_bodies._parse_exactly(raw)
        for whole_bytes, levels in itertools.product((0, 8, 24), (1, 2, 6)):
            patch.setattr(request_bodies, "_WHOLE_BYTES", whole_bytes)
            patch.setattr(request_bodies, "_LEVELS", levels)
            assert is_refused(parse_json_body, raw) == wrong
            assert wrong or parse_json_body(raw) == request_bodies._parse_exactly(raw)


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (AppendBody, '{"events": [%s]}'),
        (AppendsBody, '{"appends": [{"events": []}, {"events": [%s]}]}'),
    ],
)
def test_a_large_body_is_parsed_in_parts(
    kind: type[Any], shape: str, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K3: a large body is parsed in parts of about one event each."""
    event = {"event_type": "x", "payload": {"list": list(range(1000)), "text": "a b"}}
    text = json.dumps(event, indent=indent)
    raw = (shape % ",".join([text] * 400)).encode()
    read: list[int] = []
    decode = request_bodies._decode_any

    def counted(part: bytes) -> Any:
        read.append(len(part))
        return decode(part)

    monkeypatch.setattr(request_bodies, "_decode_any", counted)
    assert BodyParser(kind)(raw) is not None
    assert max(read) <= request_bodies._WHOLE_BYTES + 1024
    assert sum(read) <= len(raw) + 1024
    doubled = raw.replace(b'"text"', b'"list"', 1)
    with pytest.raises(SeriatimError, match="twice"):
        BodyParser(kind)(doubled)


@pytest.mark.parametrize("whole_bytes", [request_bodies._WHOLE_BYTES, 16])
def test_a_payload_is_parsed_once(whole_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A3: the payload of an event is the value that was parsed with its body."""
    monkeypatch.setattr(request_bodies, "_WHOLE_BYTES", whole_bytes)
    payload = {"a": [1, 2.5, None], "b": {"c": 10**30}}
    value = parse_json_body(
        json.dumps({"events": [{"event_type": "x", "payload": payload}]}).encode()
    )

    body = BodyParser(AppendBody).match(value)
    parsed = request_bodies.convert_append(body, DEFAULT_LIMITS)

    assert parsed.events[0].payload == payload
    assert parsed.events[0].payload is value["events"][0]["payload"]


def test_a_body_of_another_shape_does_not_match() -> None:
    """B2: the fast parser does not match bodies of another shape."""
    parser = BodyParser(AppendBody)
    others: tuple[Any, ...] = (
        [],
        {},
        {"events": [{}]},
        {"events": [], "other": 1},
        {"events": [], "conditions": [{"query": []}]},
        {"events": [], "\ud800": 1},
    )

    assert [parser.match(wrong) for wrong in others] == [None] * len(others)
