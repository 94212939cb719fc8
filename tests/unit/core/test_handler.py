"""Declarations of handlers, deliveries, and retry policies."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import seriatim
from seriatim import Delivery, NewEvent, RetryPolicy, handler
from seriatim.core.error_summary import sanitize_reason, summarize_error
from seriatim.core.errors import InvalidArgument
from seriatim.core.patterns import NameFilter, is_pattern


def do_nothing(_event: object, _context: object) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    "parts",
    [
        {"name": ""},
        {"effect": "magic"},
        {"mode": "loose"},
        {"on_poison": "drink"},
        {"events": "order.*"},
        {"events": []},
        {"events": ["*.x"]},
        {"stream_types": [""]},
        {"start": -1},
        {"start": True},
        {"retry_unknown": True},
        {"retry": RetryPolicy(attempts=0)},
        {"retry": RetryPolicy(base_s=-1)},
        {"retry": RetryPolicy(factor=0.5)},
        {"retry": RetryPolicy(jitter=2)},
        {"retry": RetryPolicy(final=("x",))},  # type: ignore[arg-type]
    ],
)
def test_invalid_handlers_are_refused(parts: dict[str, Any]) -> None:
    """G4: a handler with invalid options is refused when it is declared."""
    given = {"name": "mailer", "effect": "keyed"} | parts
    name = given.pop("name")
    with pytest.raises(InvalidArgument, match="handler"):
        handler(name, **given)(do_nothing)
    with pytest.raises(InvalidArgument, match="function"):
        handler("mailer", effect="keyed")("nothing")  # type: ignore[arg-type]


def test_handler_filter_selects_events() -> None:
    """G4: a handler accepts events by type, pattern and stream type."""
    one = handler("m", effect="keyed", events=["order.*", "paid"], stream_types=["order"])(
        do_nothing
    )

    assert one.accepts("order.placed", "order")
    assert one.accepts("paid", "order")
    assert not one.accepts("orders", "order")
    assert not one.accepts("paid", None)
    assert RetryPolicy(factor=1000, cap_s=5).pause_s(10_000, 0.0) == 5
    assert handler("m", effect="keyed")(do_nothing).accepts("anything", None)


def test_declaration_of_a_handler() -> None:
    """G4: a declaration has mode, filter, start and effect, but not the function."""
    one = handler("m", effect="unsafe", events=["b", "a"], stream_types=["s"], start=3)(do_nothing)
    two = handler("m", effect="unsafe", events=["a", "b"], stream_types=["s"], start=3)(print)

    assert one.declaration == two.declaration
    assert one.at_most_once
    assert handler("m", effect="keyed")(do_nothing).declaration != one.declaration
    repeated = handler("m", effect="unsafe", retry_unknown=True)(do_nothing)
    assert not repeated.at_most_once


def test_backoff_and_final_errors() -> None:
    """G5: delays grow up to a cap, reduced by a random part; a final error ends the attempts."""
    policy = RetryPolicy(attempts=3, base_s=1, factor=2, cap_s=5, jitter=0.5, final=(KeyError,))

    assert [policy.pause_s(attempt, 0.0) for attempt in (1, 2, 3, 4)] == [1, 2, 4, 5]
    assert policy.pause_s(2, 0.5) == 1.5
    assert RetryPolicy(factor=1000, cap_s=7).pause_s(10_000, 0.0) == 7
    assert not policy.gives_up(2, ValueError())
    assert policy.gives_up(3, ValueError())
    assert policy.gives_up(1, KeyError())


def test_a_delivery_of_a_record() -> None:
    """G1: a delivery has the ids of its event and its number in the stream."""
    with seriatim.open("memory:") as log:
        log.append([NewEvent("a", {"n": 1}, stream=("s", "1")), NewEvent("b")])
        first, second = (Delivery.of(record) for record in log.read())

    assert (first.ordered_stream, first.stream_seq, first.first_seq) == (
        ("default", "s", "1"),
        1,
        1,
    )
    assert first.key == ("default", first.event_id)
    assert msgspec.json.decode(first.event_json or "")["payload"] == '{"n":1}'
    assert second.ordered_stream is None
    assert Delivery(event_id="e").event_json is None


def test_name_filters() -> None:
    """I1: a filter names types, prefixes or everything."""
    names = NameFilter.parse(["order.*", "paid"])

    assert names.allows("order.placed")
    assert not names.allows("orders")
    assert names.intersect(None) == names
    both = names.intersect(NameFilter.parse(["order.placed", "paid", "order.item.*"]))
    assert (both.values, both.prefixes) == (("paid", "order.placed"), ("order.item.",))
    assert [is_pattern(one) for one in ("*", "a.*", "a", ".*", "*.a", "a*")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_summarized_errors_contain_no_secret() -> None:
    """K1: the summary of an error is shortened and contains no secret."""
    token = "ghp_" + "a1B2" * 9

    assert summarize_error(ValueError("no seat")) == "ValueError: no seat"
    assert token not in summarize_error(ValueError(f"refused {token}"))
    assert summarize_error(ValueError("x" * 900)) == f"ValueError: {'x' * 488}"
    assert sanitize_reason("ValueError: no seat") == "ValueError: no seat"
    assert sanitize_reason("x" * 900) == "x" * 500
    assert token not in sanitize_reason(f"refused {token}")
    assert "\0" not in sanitize_reason("a\0b")
