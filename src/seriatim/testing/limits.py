"""K3: everything has a configurable limit, and the error names the limit."""

from __future__ import annotations

from typing import Any

from seriatim.config import Settings
from seriatim.core.indexes import PayloadIndex
from seriatim.core.limits import Limits
from seriatim.core.query import Filter, Query
from seriatim.core.request import ExpectedContext
from seriatim.factory import Log
from seriatim.testing.factories import (
    assert_all_refused,
    assert_refused,
    event,
    events,
    open_on_same_store,
)

MIB = 1024 * 1024


def nested_payload(depth: int) -> dict[str, Any]:
    """Return a payload of this depth; the payload itself counts as 1."""
    value: Any = {}
    for number in range(depth - 1):
        value = {"d": value} if number % 2 else [value]
    return value if isinstance(value, dict) else {"d": value[0]}


class LimitContract:
    """K3: a value at the limit is accepted; above it, `limit_exceeded` names the limit."""

    def test_payload_has_at_most_1_mib(self, log: Log) -> None:
        """K3: a payload has at most 1 MiB of canonical text, counted in bytes."""
        frame = len('{"x":""}')
        log.append([event(payload={"x": "a" * (MIB - frame)})])
        assert len(next(log.read()).payload_json) == MIB

        for text in ("a" * (MIB - frame + 1), "é" * (MIB // 2), "x" * 2 * MIB):
            with assert_refused(log, "limit_exceeded", limit="payload_bytes", index=1, bound=MIB):
                log.append([event(), event(payload={"x": text})])

    def test_payload_has_at_most_64_levels(self, log: Log) -> None:
        """K3: a payload has at most 64 levels, including itself."""
        log.append([event(payload=nested_payload(64))])

        for depth in (65, 100, 5000):
            with assert_refused(log, "limit_exceeded", limit="payload_depth", index=0, bound=64):
                log.append([event(payload=nested_payload(depth))])

    def test_append_has_at_most_10_000_events(self, log: Log) -> None:
        """K3: one append has at most 10,000 events."""
        with assert_refused(log, "limit_exceeded", limit="append_events", actual=10_001):
            log.append(events(10_001))

        result = log.append(events(10_000))
        assert (result.count, log.head()) == (10_000, 10_000)

    def test_append_has_at_most_16_mib(self, log: Log) -> None:
        """K3: one append has at most 16 MiB, counted in bytes."""
        wide = {"x": "é" * 500_000}
        with assert_refused(log, "limit_exceeded", limit="append_bytes", bound=16 * MIB):
            log.append([event(payload=wide)] * 17)

    def test_event_has_at_most_64_tags_of_256_bytes(self, log: Log) -> None:
        """K3: an event has at most 64 tags of at most 256 bytes."""
        log.append([event(tags=tuple(str(number) * 2 for number in range(64)))])
        log.append([event(tags=("é" * 128,))])

        with assert_refused(log, "limit_exceeded", limit="tags", index=0, bound=64):
            log.append([event(tags=("t",) * 65)])
        with assert_refused(log, "limit_exceeded", limit="tag_bytes", index=0, bound=256):
            log.append([event(tags=("é" * 129,))])

    def test_event_has_at_most_1000_indexed_values(self, log: Log) -> None:
        """K3: declared payload indexes find at most 1,000 values in one event."""
        log.declare(PayloadIndex("seat", "labels[]"))
        log.append([event("seat", payload={"labels": [number % 1000 for number in range(2000)]})])

        with assert_refused(log, "limit_exceeded", limit="index_terms", index=0, bound=1000):
            log.append([event("seat", payload={"labels": list(range(1001))})])
        log.append([event("other", payload={"labels": list(range(1001))})])

    def test_metadata_has_at_most_64_entries_and_8_kib(self, log: Log) -> None:
        """K3: metadata has at most 64 entries and 8 KiB."""
        log.append([event(metadata={f"k{number}": "v" for number in range(64)})])

        with assert_refused(log, "limit_exceeded", limit="metadata_entries"):
            log.append([event(metadata={f"k{number}": "v" for number in range(65)})])
        with assert_refused(log, "limit_exceeded", limit="metadata_bytes"):
            log.append([event(metadata={f"k{number}": "é" * 250 for number in range(17)})])

    def test_query_has_at_most_64_filters_of_64_predicates(self, log: Log) -> None:
        """K3: a query has at most 64 filters with at most 64 entries on each side."""
        log.append(events(2))
        most = Query([Filter(payload=[{"n": number} for number in range(32)])] * 64)
        wide = Query([Filter(payload=[{"n": number} for number in range(64)])] * 32)
        assert log.query(most).context_version == log.query(wide).context_version == 2

        assert_all_refused(
            log,
            log.query,
            {
                "filters": (Query([Filter()] * 65), "limit_exceeded", "filters"),
                "types": (Query([Filter(types=["a"] * 65)]), "limit_exceeded", "predicates"),
                "payload": (Query([Filter(payload=[1] * 65)]), "limit_exceeded", "predicates"),
                "depth": (
                    Query([Filter(payload=[nested_payload(65)])]),
                    "limit_exceeded",
                    "payload_depth",
                ),
            },
        )

    def test_query_has_at_most_4096_values(self, log: Log) -> None:
        """K3: the predicates of a query have at most 4,096 values, over all of its filters."""
        log.append([event(payload={"a": list(range(4094)), "b": {"c": 1}})])
        most = Query([Filter(payload=[{"a": list(range(4094))}])])
        assert log.query(most).context_version == 1
        assert log.append([event()], ExpectedContext(most, 1)).first_position == 2

        half = Filter(payload=[list(range(2048))])
        for more in (Query([half, half]), Query([Filter(payload=[list(range(4096))])])):
            with assert_refused(log, "limit_exceeded", limit="predicate_values", bound=4096):
                log.query(more)
            with assert_refused(log, "limit_exceeded", limit="predicate_values", bound=4096):
                log.append([event()], ExpectedContext(more, None))

    def test_append_has_at_most_64_conditions_with_256_filters(self, log: Log) -> None:
        """K3: an append has at most 64 conditions, and they have at most 256 filters together."""
        one = ExpectedContext(Query([Filter(types=["absent"], payload=[{"n": 1}])] * 4), None)
        assert log.append([event()], [one] * 64).first_position == 1

        with assert_refused(log, "limit_exceeded", limit="conditions", bound=64):
            log.append([event()], [one] * 65)
        more = ExpectedContext(Query([Filter(types=["absent"])] * 5), None)
        with assert_refused(log, "limit_exceeded", limit="condition_filters", bound=256):
            log.append([event()], [*[one] * 63, more])

    def test_costly_predicates_are_refused(self, log: Log) -> None:
        """K3, D3: large arrays are matched; more comparisons than the limit are refused."""
        texts = [f"text-{number}" for number in range(20_000)]
        objects = [{"k": {"l": number}, "m": "same"} for number in range(5_000)]
        log.append([event(payload={"a": texts, "b": objects})])
        many = [{"m": "same", "k": {"l": number}} for number in range(1000)]
        for want, expected in [
            ({"a": texts[-3000:]}, 1),
            ({"a": [*texts[-3000:], "absent"]}, None),
            ({"b": many}, 1),
            ({"b": [*many, {"m": "other"}]}, None),
        ]:
            query = Query([Filter(payload=[want])])
            assert log.query(query).context_version == expected
            with assert_refused(log, "conditional_append_conflict", expected=7, actual=expected):
                log.append([event()], ExpectedContext(query, 7))

        alike: dict[str, Any] = {"x": [{"p": 1, "q": 2}, {"p": 2, "q": 1}], "z": list(range(500))}
        have = [{**alike, "n": number} for number in range(400)]
        have.append({**alike, "x": [{"p": 1, "q": 1}]})
        log.append([event("hostile", payload={"a": have})])
        endless = [{"x": [{"p": 1, "q": 1}], "z": [number]} for number in range(500)]
        query = Query([Filter(types=["hostile"], payload=[{"a": endless}])])
        with assert_refused(log, "limit_exceeded", limit="match_steps"):
            log.query(query)
        with assert_refused(log, "limit_exceeded", limit="match_steps"):
            log.append([event()], ExpectedContext(query, None))

    def test_integers_have_a_limited_number_of_digits(self, log: Log) -> None:
        """K3: integers have as many digits as every backend and reader can hold."""
        log.append([event(n=10**4299), event(n=-(10**4299))])
        assert [record.payload["n"] for record in log.read()] == [10**4299, -(10**4299)]

        with assert_refused(log, "limit_exceeded", limit="integer_digits", index=0):
            log.append([event(n=10**4300)])

    def test_number_of_open_subscriptions_is_limited(self, log: Log) -> None:
        """K3: the number of open subscriptions and tails is limited; closed ones do not count."""
        with open_on_same_store(log, settings=Settings(limits=Limits(subscriptions=2))) as small:
            first = small.subscribe("a")
            second = small.for_tenant("other").tail()
            with assert_refused(log, "limit_exceeded", limit="subscriptions", bound=2):
                small.tail()
            with assert_refused(log, "limit_exceeded", limit="subscriptions", bound=2):
                small.subscribe("b")
            del second
            small.tail()
            assert first.position == 0

    def test_bounds_are_configured(self, log: Log) -> None:
        """K3: every limit is a setting of the log."""
        bounds = Limits(
            payload_bytes=20, payload_depth=2, append_events=2, tags=1, page=3, filters=1
        )
        with open_on_same_store(log, settings=Settings(limits=bounds)) as small:
            assert_all_refused(
                log,
                small.append,
                {
                    "payload": (
                        [event(payload={"x": "a" * 20})],
                        "limit_exceeded",
                        "payload_bytes",
                    ),
                    "depth": (
                        [event(payload=nested_payload(3))],
                        "limit_exceeded",
                        "payload_depth",
                    ),
                    "events": (events(3), "limit_exceeded", "append_events"),
                    "tags": ([event(tags=("a", "b"))], "limit_exceeded", "tags"),
                },
            )
            with assert_refused(log, "limit_exceeded", limit="filters"):
                small.query(Query([Filter(), Filter()]))
            with assert_refused(log, "invalid_argument", argument="limit", maximum=3):
                small.page(limit=4)
            for _ in range(4):
                small.append(events(2))
            assert len(small.page().records) == 3
            assert len(list(small.read())) == 8
            assert len(small.query().records) == 8
