"""The rules of a consistent log, which verify and the audit share."""

from __future__ import annotations

import pytest

from seriatim.core.canonical import hash_text
from seriatim.core.consistency import (
    EventProblem,
    find_append_problem,
    find_envelope_problems,
    find_payload_problems,
    find_stream_problems,
)
from seriatim.core.kinds import StreamKind

CASE = StreamKind(name="case", opening_type="opened", closing_types=("closed",))


@pytest.mark.parametrize(
    ("append_position", "tenant_id", "start", "problem"),
    [
        (9, "a", None, None),
        (8, "a", (8, "a"), None),
        (8, "a", None, "position 9 has the append position 8, but no append starts before it"),
        (7, "a", (8, "a"), "position 9 has the append position 7, but its append starts at 8"),
        (8, "b", (8, "a"), "position 9 has another tenant than the rest of its append"),
    ],
)
def test_append_positions(
    append_position: int, tenant_id: str, start: tuple[int, str] | None, problem: str | None
) -> None:
    """B1: an event belongs to the append before it or starts one."""
    assert find_append_problem(9, append_position, tenant_id, start) == problem


@pytest.mark.parametrize(
    ("payload", "problems"),
    [
        ('{"a":1}', []),
        ('{"a": 1}', ["the payload is not canonical JSON"]),
        ('{"a"', ["the payload is not JSON"]),
    ],
)
def test_payloads_are_canonical(payload: str, problems: list[str]) -> None:
    """A2: a payload that is not JSON or not canonical is reported."""
    assert list(find_payload_problems(payload, hash_text(payload))) == problems


def test_payloads_match_their_hash() -> None:
    """A2: a payload that does not match its hash is reported."""
    assert list(find_payload_problems("{}", hash_text("[]"))) == [
        "the payload does not match its hash"
    ]


def test_malformed_envelopes_are_reported() -> None:
    """A4: malformed ids, keys and numbers, and incomplete streams, are reported."""
    problems = find_envelope_problems(
        event_id=" e",
        tenant_id="t",
        event_type="",
        event_version=0,
        stream_type="s",
        stream_id=None,
        stream_seq=None,
        idempotency_key="",
    )

    assert list(problems) == [
        "stream_seq is missing",
        "event_id must not start or end with white space",
        "event_type must not be empty",
        "stream_id must be a string",
        "idempotency_key must have 1 to 200 bytes",
        "event_version is below 1",
    ]


@pytest.mark.parametrize("stream", [(None, None, None), ("s", "1", 1)])
@pytest.mark.parametrize("key", [None, "k"])
def test_a_valid_envelope_has_no_problems(stream: tuple[str, str, int], key: str | None) -> None:
    """A4: an event may lack a stream and a key."""
    problems = find_envelope_problems(
        event_id="e",
        tenant_id="t",
        event_type="x",
        event_version=1,
        stream_type=stream[0],
        stream_id=stream[1],
        stream_seq=stream[2],
        idempotency_key=key,
    )

    assert list(problems) == []


@pytest.mark.parametrize(
    ("seq", "event_type", "last", "problems"),
    [
        (1, "opened", None, []),
        (2, "noted", (1, "opened"), []),
        (0, "opened", None, [("warning", "begins with number 0")]),
        (5, "opened", None, [("error", "begins with number 5")]),
        (1, "noted", None, [("warning", "does not open with opened")]),
        (4, "noted", (2, "noted"), [("error", "has number 4 after 2")]),
        (3, "noted", (2, "closed"), [("warning", "continues after it was closed by closed")]),
        (3, "opened", (2, "noted"), [("warning", "opens a second time")]),
    ],
)
def test_stream_numbers_and_rules(
    seq: int, event_type: str, last: tuple[int, str] | None, problems: list[EventProblem]
) -> None:
    """B5, B7, A8: gaps in numbers are errors, rules of a later declared kind warnings."""
    assert list(find_stream_problems(seq, event_type, last, CASE)) == problems
