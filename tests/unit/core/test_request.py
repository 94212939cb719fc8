"""Conditions, commands and prepared events."""

from typing import Any

import pytest

from seriatim.core.canonical import hash_text
from seriatim.core.errors import (
    InvalidArgument,
    InvalidQuery,
    LimitExceeded,
    PiiPolicyViolation,
)
from seriatim.core.event import NewEvent
from seriatim.core.ids import hash_key
from seriatim.core.limits import Limits
from seriatim.core.prepare import ValidationContext, prepare
from seriatim.core.query import Filter, Query
from seriatim.core.request import (
    Command,
    ExpectedContext,
    ExpectedSeq,
    check_conditions,
    check_stream_ref,
    prepare_command,
)

LIMITS = Limits()
_seq: Any = ExpectedSeq  # for values that its types forbid
_command: Any = Command


def test_conditions_are_accepted() -> None:
    """B8: an append has no, one or several conditions."""
    one, other = ExpectedSeq(("s", "1"), None), ExpectedContext(Query(), 3)

    assert check_conditions(None, LIMITS) == ()
    assert check_conditions(one, LIMITS) == (one,)
    assert check_conditions([one, other], LIMITS) == (one, other)
    assert check_conditions((), LIMITS) == ()
    assert check_conditions(ExpectedSeq(("s", "1"), 0), LIMITS)
    assert check_conditions(ExpectedSeq(("s", "1"), 2**63 - 1), LIMITS)


def test_conditions_and_their_filters_are_bounded() -> None:
    """K3: an append has at most 64 conditions with 256 filters; this is checked first."""
    many = ExpectedContext(Query([Filter(types=["a"])] * 64), None)
    assert len(check_conditions([ExpectedSeq(("s", "1"), 1)] * 64, LIMITS)) == 64
    assert len(check_conditions([many] * 4, LIMITS)) == 4

    for given, limit, actual in [
        ([ExpectedSeq(("s", "1"), 1)] * 65, "conditions", 65),
        ([many] * 4 + [ExpectedContext(Query([Filter()]), None)], "condition_filters", 257),
        ([_seq("s", 1)] * 65, "conditions", 65),
    ]:
        with pytest.raises(LimitExceeded) as caught:
            check_conditions(given, LIMITS)
        assert (caught.value.details["limit"], caught.value.details["actual"]) == (limit, actual)


@pytest.mark.parametrize(
    ("condition", "argument"),
    [
        ("x", "condition"),
        ([ExpectedSeq(("s", "1"), 1), None], "condition"),
        (_seq("s", 1), "stream"),
        (ExpectedSeq(("s", ""), 1), "stream"),
        (ExpectedSeq(("s", "1"), -1), "condition.seq"),
        (ExpectedSeq(("s", "1"), True), "condition.seq"),
        (ExpectedSeq(("s", "1"), 2**63), "condition.seq"),
        (ExpectedContext(Query(), 0), "expected_version"),
        (ExpectedContext(Query()), "condition"),
        (ExpectedContext(Query(), 1, 1), "condition"),
        (ExpectedContext(Query(), after=-1), "after"),
    ],
)
def test_invalid_conditions_are_refused(condition: Any, argument: Any) -> None:
    """B8, D6: an invalid condition is refused with the argument."""
    with pytest.raises(InvalidArgument) as caught:
        check_conditions(condition, LIMITS)
    assert caught.value.details == {"argument": argument}


def test_conditions_are_bounded() -> None:
    """K3: the number of conditions has a configured bound."""
    many = [ExpectedSeq(("s", str(n)), 1) for n in range(3)]
    assert check_conditions(many, Limits(conditions=3))
    with pytest.raises(LimitExceeded) as caught:
        check_conditions(many, Limits(conditions=2))
    assert caught.value.details["limit"] == "conditions"


def test_queries_in_conditions_are_validated() -> None:
    """D6: the query of a condition is validated like any other."""
    with pytest.raises(InvalidQuery):
        check_conditions(ExpectedContext(Query([Filter(types="x")]), 1), LIMITS)
    with pytest.raises(LimitExceeded):
        check_conditions(ExpectedContext(Query([Filter()] * 3), 1), Limits(filters=2))


def test_stream_references() -> None:
    """A4: a stream is a pair of ids."""
    assert check_stream_ref(("s", "1")) == ("s", "1")
    for wrong in (None, "s1", ["s", "1"], ("s",), ("s", "1", "2"), ("s", 1), ("", "1")):
        with pytest.raises(InvalidArgument) as caught:
            check_stream_ref(wrong)
        assert caught.value.details == {"argument": "stream"}


def test_prepared_commands() -> None:
    """C5: the key of a command has tenant, actor, endpoint and key; its request is hashed."""
    command = Command(actor="a", endpoint="e", key="k", request={"b": 1, "a": 2}, response=[1.5])

    made = prepare_command("t", command, LIMITS)

    assert made is not None
    assert made.command is command
    assert made.command_key == hash_key("t", "a", "e", "k")
    assert made.request_hash == hash_text('{"a":2,"b":1}')
    assert made.response == "[1.5]"
    assert prepare_command("t", None, LIMITS) is None


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        ({"actor": "a"}, "command"),
        (Command(actor="", endpoint="e", key="k"), "command.actor"),
        (_command(actor="a", endpoint=1, key="k"), "command.endpoint"),
        (Command(actor="a", endpoint="e", key=""), "command.key"),
        (Command(actor="a", endpoint="e", key="k", request={1: 1}), "command"),
        (Command(actor="a", endpoint="e", key="k", response="\0"), "command"),
    ],
)
def test_invalid_commands_are_refused(command: Any, argument: Any) -> None:
    """C5: an invalid part of a command is refused by name."""
    with pytest.raises(InvalidArgument) as caught:
        prepare_command("t", command, LIMITS)
    assert caught.value.details == {"argument": argument}


def test_responses_are_bounded() -> None:
    """C5: a stored response is bounded like a payload."""
    command = Command(actor="a", endpoint="e", key="k", response="x" * 10)
    prepare_command("t", command, Limits(payload_bytes=12))
    with pytest.raises(LimitExceeded) as caught:
        prepare_command("t", command, Limits(payload_bytes=11))
    assert caught.value.details["limit"] == "payload_bytes"


def test_responses_are_bounded_in_bytes() -> None:
    """C5: the bound of a response counts its UTF-8 bytes, not its characters."""
    command = Command(actor="a", endpoint="e", key="k", response="é" * 10)
    prepare_command("t", command, Limits(payload_bytes=22))
    with pytest.raises(LimitExceeded) as caught:
        prepare_command("t", command, Limits(payload_bytes=21))
    assert caught.value.details["actual"] == 22


def test_responses_are_guarded() -> None:
    """K1: a response with a secret is refused; a request, which is only hashed, is not."""
    secret = {"keys": ["AKIAIOSFODNN7EXAMPLE"]}
    assert prepare_command("t", Command(actor="a", endpoint="e", key="k", request=secret), LIMITS)
    with pytest.raises(PiiPolicyViolation) as caught:
        prepare_command("t", Command(actor="a", endpoint="e", key="k", response=secret), LIMITS)
    assert caught.value.details["path"] == "command.response.keys[0]"
    assert "AKIA" not in str(caught.value)


def test_requests_may_contain_the_deepest_payload() -> None:
    """C5: the request of a command may be deeper than the deepest payload."""
    deep: Any = {}
    for _ in range(LIMITS.payload_depth - 1):
        deep = {"a": deep}
    body = {"appends": [{"events": [{"payload": deep}]}]}
    assert prepare_command("t", Command(actor="a", endpoint="e", key="k", request=body), LIMITS)


def test_a_prepared_event_becomes_a_record() -> None:
    """A1: a record has position, number and time of the log; a missing time is its own."""
    context = ValidationContext(tenant_id="t", new_id=lambda: "e-1")
    own = NewEvent("x", {"n": 1}, stream=("s", "1"), occurred_at="2024-01-01T00:00:00Z")
    (first, second), _ = prepare(context, [own, NewEvent("y", event_id="e-2")])

    record = first.to_record(7, 6, 3, 1_000_001)
    assert (record.position, record.append_position, record.stream_seq) == (7, 6, 3)
    assert (record.stream, first.stream) == (("s", "1"), ("s", "1"))
    assert record.recorded_at == "1970-01-01T00:00:01.000001Z"
    assert record.occurred_at == "2024-01-01T00:00:00Z"
    fact = second.to_record(8, 6, None, 0)
    assert (fact.stream, second.stream) == (None, None)
    assert fact.occurred_at == fact.recorded_at == "1970-01-01T00:00:00.000000Z"


def test_a_condition_after_position_0() -> None:
    """D7: a context may be limited to events after a position from 0."""
    bounded = ExpectedContext(Query(), after=0)

    assert check_conditions(bounded, LIMITS) == (bounded,)
