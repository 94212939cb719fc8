"""The envelope: the validation of every field, and the requirements of every profile."""

from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest

from seriatim.core.envelope import check_envelope
from seriatim.core.errors import InvalidArgument, LimitExceeded, ValidationError
from seriatim.core.event import INFRASTRUCTURE_TENANT, NewEvent
from seriatim.core.kinds import NO_RULES, PROFILE_KINDS, Rules, StreamKind
from seriatim.core.limits import DEFAULT_LIMITS, Limits
from seriatim.core.profile_rules import LOG_PROFILE
from seriatim.profiles.aggregate_values import AGGREGATES_PROFILE
from seriatim.profiles.facts import FACTS_PROFILE
from seriatim.profiles.trace_rules import TRACES_PROFILE
from seriatim.testing.factories import trace_event


def check(
    event: Any,
    *,
    key: Any = "k",
    profile: Any = LOG_PROFILE,
    tenant: Any = "t",
    rules: Any = NO_RULES,
    limits: Any = DEFAULT_LIMITS,
) -> Any:
    """Validate one envelope."""
    return check_envelope(event, key, profile, tenant, rules, limits)


def invalid_field(event: Any, **options: object) -> Any:
    """Return the field that is reported as invalid."""
    with pytest.raises(ValidationError) as caught:
        check(event, **options)
    assert caught.value.part == "envelope"
    return caught.value.location


_new: Any = NewEvent  # for values that its types forbid

TEXTS = [
    *("producer_id", "source_system", "source_subsystem", "actor_type", "actor_id"),
    *("request_id", "correlation_id", "causation_id", "app_id", "env_id"),
]


@pytest.mark.parametrize("field", TEXTS)
def test_free_texts(field: Any) -> None:
    """A1: free texts are strings without NUL and surrogates, of bounded length."""
    for value in ("", "a", "x" * 512):
        assert check(_new("x", **{field: value})) is None
    for wrong in (1, "a\0", "\ud800", "x" * 513):
        assert invalid_field(_new("x", **{field: wrong})) == field


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"event_type": ""}, "event_type"),
        ({"event_id": ""}, "event_id"),
        ({"event_version": 0}, "event_version"),
        ({"event_version": 2**31}, "event_version"),
        ({"event_version": True}, "event_version"),
        ({"stream": ["s", "1"]}, "stream"),
        ({"stream": ("s", "1", "2")}, "stream"),
        ({"stream": ("", "1")}, "stream_type"),
        ({"stream": ("s", None)}, "stream_id"),
        ({"stream_seq": 1}, "stream_seq"),
        ({"stream": ("s", "1"), "stream_seq": -1}, "stream_seq"),
        ({"stream": ("s", "1"), "stream_seq": 2**63}, "stream_seq"),
        ({"stream": ("s", "1"), "stream_seq": 1.0}, "stream_seq"),
        ({"occurred_at": "now"}, "occurred_at"),
        ({"tags": "ab"}, "tags"),
        ({"tags": None}, "tags"),
        ({"tags": ("a", 1)}, "tags[1]"),
        ({"tags": ["\0"]}, "tags[0]"),
        ({"tags": ["\ud800"]}, "tags[0]"),
        ({"metadata": None}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {1: "a"}}, "metadata"),
    ],
)
def test_invalid_fields_are_named(fields: Any, where: Any) -> None:
    """B2: the error names the invalid field."""
    assert invalid_field(NewEvent(**({"event_type": "x"} | fields))) == where


def test_valid_envelopes_pass() -> None:
    """A1: values at the edge of validity are accepted."""
    passing: list[dict[str, Any]] = [
        {"stream": ("s", "1")},
        {"stream": ("s", "1"), "stream_seq": 0},
        {"stream": ("s", "1"), "stream_seq": 2**63 - 1},
        {"event_version": 2**31 - 1},
        {"occurred_at": "2024-01-01T00:00:00Z"},
        {"tags": []},
        {"tags": ["", "a"]},
        {"metadata": OrderedDict(a="b")},
        {"metadata": MappingProxyType({})},
        {"tenant_id": "t"},
        {"event_id": "e"},
    ]
    for fields in passing:
        assert check(_new("x", **fields)) is None


def test_an_event_of_another_tenant_is_refused() -> None:
    """B8: an event that names another tenant than the append is refused."""
    with pytest.raises(InvalidArgument) as caught:
        check(NewEvent("x", tenant_id="u"))
    assert caught.value.details == {"argument": "tenant_id"}


def test_infrastructure_kinds_need_the_reserved_tenant() -> None:
    """K2: streams of an infrastructure kind are accepted in the reserved tenant only."""
    rules = Rules((StreamKind(name="node", infrastructure=True),), ())
    event = NewEvent("x", stream=("node", "1"))

    check(event, rules=rules, tenant=INFRASTRUCTURE_TENANT)
    with pytest.raises(InvalidArgument) as caught:
        check(event, rules=rules)
    assert caught.value.details == {"argument": "tenant_id"}


def test_caller_numbered_kind_requires_a_number() -> None:
    """B5: an event of a caller-numbered kind needs a number."""
    rules = Rules((StreamKind(name="mine", numbered_by="caller"),), ())

    assert invalid_field(NewEvent("x", stream=("mine", "1")), rules=rules) == "stream_seq"
    check(NewEvent("x", stream=("mine", "1"), stream_seq=1), rules=rules)


def test_facts_profile_sets_the_time() -> None:
    """B2: in facts an event with `occurred_at` is refused."""
    assert (
        invalid_field(NewEvent("x", occurred_at="2024-01-01T00:00:00Z"), profile=FACTS_PROFILE)
        == "occurred_at"
    )
    check(NewEvent("x"), key=None, profile=FACTS_PROFILE)


def test_aggregates_profile_requires_its_fields() -> None:
    """A7: aggregates require a stream, a request id and one of three actor types."""
    whole: dict[str, Any] = {
        "stream": ("o", "1"),
        "request_id": "r",
        "actor_type": "user",
        "actor_id": "u",
    }
    check(NewEvent("x", **whole), key=None, profile=AGGREGATES_PROFILE)
    for field in whole:
        assert (
            invalid_field(NewEvent("x", **(whole | {field: None})), profile=AGGREGATES_PROFILE)
            == field
        )
    assert (
        invalid_field(NewEvent("x", **(whole | {"request_id": ""})), profile=AGGREGATES_PROFILE)
        == "request_id"
    )
    assert (
        invalid_field(NewEvent("x", **(whole | {"actor_type": "role"})), profile=AGGREGATES_PROFILE)
        == "actor_type"
    )


def test_traces_require_the_whole_envelope() -> None:
    """A7: an event of a trace needs its whole envelope, in every profile."""
    untyped: Any = trace_event  # for values that its types forbid
    for profile in (LOG_PROFILE, TRACES_PROFILE):
        checked = check(trace_event("TraceStarted", "t", 0), profile=profile)
        assert checked is PROFILE_KINDS["trace"]
        for field in (
            *("event_id", "stream_seq", "occurred_at", "producer_id", "source_system"),
            *("actor_type", "actor_id"),
        ):
            assert (
                invalid_field(untyped("TraceStarted", "t", 0, **{field: None}), profile=profile)
                == field
            )
        assert (
            invalid_field(trace_event("TraceStarted", "t", 0), key=None, profile=profile)
            == "idempotency_key"
        )
        odd = trace_event("TraceStarted", "t", 0, actor_type="user")
        assert invalid_field(odd, profile=profile) == "actor_type"


def test_tags_and_metadata_are_bounded() -> None:
    """K3: tags and metadata are bounded in number and bytes."""
    limits = Limits(tags=1, tag_bytes=2, metadata_entries=1, metadata_bytes=4)
    check(NewEvent("x", tags=("é",), metadata={"é": "é"}), limits=limits)
    for fields, name in (
        ({"tags": ("a", "b")}, "tags"),
        ({"tags": ("éa",)}, "tag_bytes"),
        ({"metadata": {"a": "", "b": ""}}, "metadata_entries"),
        ({"metadata": {"é": "éa"}}, "metadata_bytes"),
    ):
        with pytest.raises(LimitExceeded) as caught:
            check(NewEvent("x", **fields), limits=limits)
        assert caught.value.details["limit"] == name
