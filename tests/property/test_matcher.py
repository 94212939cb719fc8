"""D3 on generated JSON: every backend agrees with the reference matcher."""

import itertools
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from seriatim import EventRecord, Filter, Log, NewEvent, PayloadIndex, Query
from seriatim.core.indexes import format_path, required_scalars, term_key
from seriatim.core.predicate import PayloadDocument, compile_predicate, weaken_predicate
from seriatim.core.query import matches, matches_json
from seriatim.log.verification import verify
from seriatim.profiles.facts import FACTS_PROFILE
from tests.property.logs import EXAMPLES, opener

Draw = Any

_tenants = itertools.count(1)

NUMBERS: list[int | float] = [
    *(0, 1, -1, 2, 10, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1),
    *(10**16, 10**22, 10**23, 10**23 + 1, 10**40, 10**308, -(10**23)),
    *(0.0, -0.0, 1.0, -1.0, 0.1, 0.5, 1e-7, 1e16, 1e22, 1e23, 1e40, 1e308, -1e23),
    *(float(2**53), float(2**63), 5e-324, 1.7976931348623157e308, 123456789012345680.0),
    *(10**17 + 1, 100000000000000001.0, 0.30000000000000004, 0.3),
]
TEXTS = [
    *("", " ", "a", "A", "b", "1", "1.0", "true", "null", "\u00e9", "e\u0301", "ﬁ", "🦆", "𝒜"),
    *('"', "\\", "'", "%", "_", "*", "$", ".", "a.b", "$.a", "[0]", "a[0]", "{}", "[]", "\\u0041"),
    *("\n", "\t", "\x7f", "\u2028", "\x01", "?", ":", "@>", "-1", "0x1"),
]
KEYS = ["a", "b", "", "1", "a.b", "é", '"', "$", "a[0]", "\\", "'", "%", "\n", "🦆", "#", "@", "*"]

safe_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    safe_text,
)
keys = st.sampled_from(KEYS) | safe_text
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=10,
)


@st.composite
def similar(draw: Draw, value: Any) -> Any:
    """Return a predicate made from a payload: a part, another spelling, or a changed one."""
    kind = draw(st.sampled_from(["same", "same", "same", "empty", "other"]))
    if kind == "other":
        return draw(scalars | st.just([]) | st.just({}))
    if isinstance(value, dict):
        if kind == "empty":
            return {}
        kept = [key for key in value if draw(st.booleans())]
        return {key: draw(similar(value[key])) for key in kept}
    if isinstance(value, list):
        if kind == "empty":
            return []
        kept = [item for item in value if draw(st.booleans())]
        return [draw(similar(item)) for item in draw(st.permutations(kept))]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    return draw(st.sampled_from(_spellings(value)))


def _spellings(number: float) -> list[Any]:
    """Return a number, its other spellings, and its neighbours."""
    found: list[Any] = [number, str(number), bool(number)]
    if isinstance(number, int):
        found += [number + 1]
        if abs(number) < 10**308:
            found += [float(number), int(float(number))]
    elif number == int(number):
        found += [int(number), int(number) + 1]
    return found


@st.composite
def cases(draw: Draw) -> tuple[list[NewEvent], list[Query]]:
    """Return some events and queries similar to them."""
    payloads = draw(st.lists(values, min_size=1, max_size=6))
    events = [
        NewEvent(
            draw(st.sampled_from(["a", "b"])),
            payload,
            stream=draw(st.sampled_from([None, ("s", "1"), ("s", "2")])),
            tags=tuple(draw(st.lists(st.sampled_from(["t", "u", "é"]), max_size=2))),
        )
        for payload in payloads
    ]
    predicates = st.lists(st.sampled_from(payloads).flatmap(similar) | values, max_size=3)
    filters = st.builds(
        Filter,
        types=st.none() | st.lists(st.sampled_from(["a", "b", "c"]), max_size=2),
        payload=st.none() | predicates | predicates,
        tags=st.none() | st.none() | st.lists(st.sampled_from(["t", "u", "é"]), max_size=2),
        streams=st.none()
        | st.lists(st.sampled_from([("s", "1"), ("s", "2"), ("r", "1")]), max_size=2),
    )
    alone = st.builds(
        lambda one: Query([Filter(payload=[one])]), st.sampled_from(payloads).flatmap(similar)
    )
    whole = st.builds(Query, st.none() | st.lists(filters, max_size=3))
    return events, draw(st.lists(alone | whole, min_size=1, max_size=6))


def check(log: Log, events: list[NewEvent], queries: list[Query]) -> None:
    """Compare a backend with the matcher, on a tenant of its own."""
    view = log.for_tenant(f"tenant-{next(_tenants)}")
    records = view.append_draft(view.draft(FACTS_PROFILE, events)).records
    assert tuple(view.read()) == records
    compare(view, records, queries)


def compare(view: Log, records: Sequence[EventRecord], queries: list[Query]) -> None:
    """Compare the results of a log with the matcher's."""
    log, head = view, view.head()
    for query in queries:
        expected = [record.position for record in records if matches(query, record)]
        found = log.store.select(view.tenant_id, query, 0, head, 100)
        assert [record.position for record in found] == expected, query
        version = log.store.context_version(view.tenant_id, query, head)
        assert version == (expected[-1] if expected else None), query
        middle = records[len(records) // 2].position
        earlier = [position for position in expected if position < middle]
        version = log.store.context_version(view.tenant_id, query, middle - 1)
        assert version == (earlier[-1] if earlier else None), query
        late = log.store.select(view.tenant_id, query, middle, head, 2)
        assert [r.position for r in late] == [p for p in expected if p > middle][:2], query


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_every_backend_agrees(request: pytest.FixtureRequest, backend: str) -> None:
    """D3: select and context version of every backend equal the matcher on generated JSON."""
    log, remove = opener(request, backend)()

    @settings(
        max_examples=EXAMPLES * 2,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(cases())
    def run(case: tuple[list[NewEvent], list[Query]]) -> None:
        check(log, *case)

    try:
        run()
    finally:
        remove()


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_numbers_match_by_value(request: pytest.FixtureRequest, backend: str) -> None:
    """D3: numbers match by value on every backend, at several depths."""
    log, remove = opener(request, backend)()
    try:
        wraps: list[Any] = [
            lambda n: n,
            lambda n: {"a": n},
            lambda n: [n],
            lambda n: {"a": [{"b": n}]},
        ]
        for wrap in wraps:
            events = [NewEvent("n", wrap(number)) for number in (*NUMBERS, True, False, "1", None)]
            queries = [Query([Filter(payload=[wrap(number)])]) for number in NUMBERS]
            check(log, events, queries)
    finally:
        remove()


# Few values, so that large arrays are similar and differ in nested parts only.
small = st.sampled_from([0, 1, 1.0, True, None, "1", "a", 10**23, 1e23, 2**61 - 1, (2**61 - 1) * 2])
similar_values = st.recursive(
    small,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=6,
)
crowds = st.lists(similar_values, min_size=3, max_size=40)


def matches_by_definition(want: Any, have: Any) -> bool:
    """Match by the definition of D3, without indexes."""
    if isinstance(want, dict):
        return isinstance(have, dict) and all(
            key in have and matches_by_definition(inner, have[key]) for key, inner in want.items()
        )
    if isinstance(want, list):
        return isinstance(have, list) and all(
            any(matches_by_definition(inner, element) for element in have) for inner in want
        )
    if _is_number(want) and _is_number(have):
        return Decimal(repr(want)) == Decimal(repr(have))
    return type(want) is type(have) and bool(want == have)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@settings(max_examples=EXAMPLES * 4, deadline=None)
@given(crowds.flatmap(lambda have: st.tuples(st.lists(similar(have), max_size=3), st.just(have))))
def test_large_similar_arrays(case: tuple[list[Any], list[Any]]) -> None:
    """D3: the matcher equals the definition on large arrays with similar elements."""
    wants, have = case
    document = PayloadDocument.of(have)  # shared like by the predicates of one query
    for want in [*wants, have, [*have[::2], [have[0]]]]:
        expected = matches_by_definition(want, have)
        assert compile_predicate(want).matches(have, document) is expected, want
        weaker = compile_predicate(weaken_predicate(want, 3))
        assert not expected or weaker.matches(have, document)


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_every_backend_agrees_on_large_arrays(request: pytest.FixtureRequest, backend: str) -> None:
    """D3, K3: on large arrays every backend equals the matcher."""
    log, remove = opener(request, backend)()

    @settings(
        max_examples=EXAMPLES // 2 or 1,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.lists(crowds, min_size=1, max_size=3), st.data())
    def run(payloads: list[list[Any]], data: Any) -> None:
        events = [NewEvent("a", {"k": payload}, tags=("t",)) for payload in payloads]
        wanted = [data.draw(similar(payload)) for payload in payloads]
        queries = [
            *(Query([Filter(payload=[{"k": payload}])]) for payload in payloads),
            Query([Filter(payload=[{"k": [*payloads[0], *payloads[-1]]}])]),
            Query([Filter(payload=[{"k": one} for one in wanted], tags=["t"])]),
            Query(
                [Filter(types=["a"], payload=[{"k": one}, {"k": payloads[0]}]) for one in wanted]
            ),
        ]
        check(log, events, queries)

    try:
        run()
    finally:
        remove()


@st.composite
def indexed_cases(draw: Draw) -> tuple[list[NewEvent], list[Query], list[tuple[int, PayloadIndex]]]:
    """Return a case with indexes declared before, between or after its events."""
    events, queries = draw(cases())
    payloads = [event.payload for event in events]
    paths = {steps for payload in payloads for steps, _ in required_scalars(payload) if steps}
    paths.add(tuple(draw(st.lists(st.none() | keys, min_size=1, max_size=3))))
    when = st.sampled_from([0, 0, 0, 0, len(events) // 2, len(events), None])
    declared = [
        (at, PayloadIndex(event_type, path))
        for path in sorted(map(format_path, paths))
        for event_type in "ab"
        if (at := draw(when)) is not None
    ]
    some = draw(st.lists(st.sampled_from(payloads), min_size=1, max_size=2))
    predicates = [draw(similar(one)) for one in some]
    types = draw(st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2))
    queries += [
        Query([Filter(types=types, payload=predicates)]),
        Query([Filter(types=types, payload=some), Filter(types=["b"], payload=some, tags=["t"])]),
    ]
    return events, queries, declared


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_declared_indexes_do_not_change_results(
    request: pytest.FixtureRequest, backend: str
) -> None:
    """D3, A8: results equal the matcher's, whenever payload indexes are declared.

    Event types are new in each example, so that the log has no indexes for them.
    """
    log, remove = opener(request, backend)()
    numbers = itertools.count(1)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(indexed_cases())
    def run(case: tuple[list[NewEvent], list[Query], list[tuple[int, PayloadIndex]]]) -> None:
        events, queries, declared = case
        mark = f"{next(numbers)}-"
        view = log.for_tenant(f"tenant-{next(_tenants)}")
        records: list[EventRecord] = []
        for number in range(len(events) + 1):
            for at, index in declared:
                if at == number:
                    view.declare(PayloadIndex(mark + index.event_type, index.path))
            for event in events[number : number + 1]:
                renamed = msgspec.structs.replace(event, event_type=mark + event.event_type)
                records += view.append_draft(view.draft(FACTS_PROFILE, [renamed])).records
        compare(view, records, [with_prefix(query, mark) for query in queries])

    try:
        run()
        assert verify(log.store).ok
    finally:
        remove()


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_keys_of_two_elements_do_not_match_one(
    request: pytest.FixtureRequest, backend: str
) -> None:
    """D3: scalars of two array elements do not satisfy a predicate on one element."""
    log, remove = opener(request, backend)()
    elements: list[Any] = [{"a": one, "b": other} for one in (0, 1) for other in (0, 1)]
    elements += [0, {"a": 0}, {"b": 1}, [0, 1], [0], []]
    pairs = [[element, other] for element in elements for other in elements]
    streams = [None, ("s", "1"), ("s", "2")]
    events = [
        NewEvent("e", {"x": pair, "n": number % 2}, stream=streams[number % 3])
        for number, pair in enumerate(pairs)
    ]
    wanted: list[dict[str, Any]] = [
        {"x": some} for some in ([], *([element] for element in elements), *pairs)
    ]
    wanted += [{**one, "n": 1} for one in wanted]
    sides: list[dict[str, Any]] = [{}, {"streams": [("s", "2")]}]
    queries = [
        Query([Filter(types=["e"], payload=[one], **side)]) for one in wanted for side in sides
    ]
    try:
        log.declare(*(PayloadIndex("e", path) for path in ("x[]", "x[].a", "x[].b", "x[][]", "n")))
        check(log, events, queries)
    finally:
        remove()


def with_prefix(query: Query, mark: str) -> Query:
    """Return a query whose event types have a prefix."""
    return Query(
        [
            msgspec.structs.replace(one, types=one.types and [mark + name for name in one.types])
            for one in query.filters or ()
        ]
    )


@settings(max_examples=EXAMPLES * 3, deadline=None)
@given(scalars, scalars | st.none())
def test_term_keys_equal_like_scalars(one: Any, other: Any) -> None:
    """D3: two scalars have the same term key if and only if they match."""
    for want, have in [(one, other), *((one, number) for number in (*NUMBERS, *TEXTS, True))]:
        same = term_key("t", "a", "p", want) == term_key("t", "a", "p", have)
        assert same is matches_json(want, have)


@settings(max_examples=EXAMPLES * 3, deadline=None)
@example([{"a": 1}], {"a": [1]})
@given(values, values)
def test_laws_of_the_matcher(want: Any, have: Any) -> None:
    """D3: a value matches itself, {} any object, [] any array, and a scalar no container."""
    assert matches_json(want, want)
    assert matches_json(have, have)
    assert matches_json({}, have) is isinstance(have, dict)
    assert matches_json([], have) is isinstance(have, list)
    assert matches_json([want], [have, want])
    if matches_json(want, have):
        assert matches_json([want], [have])
        assert matches_json({"k": want}, {"k": have, "l": want})
    if not isinstance(want, dict | list):
        assert not matches_json(want, [want])
        if not isinstance(have, dict | list):
            assert matches_json(want, have) is matches_json(have, want)


@settings(max_examples=EXAMPLES, deadline=None)
@given(values.flatmap(lambda value: st.tuples(similar(value), st.just(value))))
def test_matching_is_monotonic(case: tuple[Any, Any]) -> None:
    """D3: a predicate still matches a payload with additional keys or elements."""
    want, have = case
    if not matches_json(want, have):
        return
    if isinstance(have, dict):
        assert matches_json(want, {**have, "one more": 1})
    if isinstance(have, list):
        assert matches_json(want, [*have, "one more"])
