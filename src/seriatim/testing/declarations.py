"""A5, A8: stream kinds, event types and payload indexes, declared in the store for all clients."""

from __future__ import annotations

from typing import Any

from seriatim.core.errors import Conflict
from seriatim.core.event import INFRASTRUCTURE_TENANT
from seriatim.core.indexes import PayloadIndex
from seriatim.core.kinds import DEFAULT_STREAM_KIND, EventType, StreamKind
from seriatim.core.query import Filter, Query
from seriatim.core.request import ExpectedContext
from seriatim.factory import Log
from seriatim.log.verification import verify
from seriatim.profiles.trace_rules import TRACE_STREAM_KIND
from seriatim.testing.factories import (
    assert_all_refused,
    assert_refused,
    event,
    open_on_same_store,
    positions,
    run_concurrently,
    stream_seqs,
)

_kind: Any = StreamKind  # for values that its types forbid
_entry: Any = EventType
_index: Any = PayloadIndex

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"total": {"type": "integer", "minimum": 0}},
    "required": ["total"],
}


class DeclarationContract:
    """A5, A8: a declaration holds for all clients and cannot be changed."""

    def test_kind_declares_first_number_and_numbering(self, log: Log) -> None:
        """A5: a kind declares its first number and whether the log or the caller numbers."""
        log.declare(
            StreamKind(name="zero", first_seq=0),
            StreamKind(name="mine", first_seq=1, numbered_by="caller"),
        )
        log.append([event(stream=("zero", "1")), event(stream=("zero", "1"))])
        log.append([event(stream=("mine", "1"), stream_seq=1)])

        assert stream_seqs(log, ("zero", "1")) == [0, 1]
        with assert_refused(log, "invalid_event", index=0, field="stream_seq"):
            log.append([event(stream=("mine", "1"))])
        with assert_refused(log, "event_sequence_invalid", expected=2, actual=3):
            log.append([event(stream=("mine", "1"), stream_seq=3)])

    def test_undeclared_kind_has_the_default_rules(self, log: Log) -> None:
        """A8: an undeclared kind starts at 1, is numbered by the log and has an open catalogue."""
        log.append([event("anything", stream=("new kind", "1"))])
        log.append([event("anything", stream=("aggregate", "1"))])

        assert stream_seqs(log, ("new kind", "1")) == stream_seqs(log, ("aggregate", "1")) == [1]

    def test_kind_declared_later_does_not_renumber_streams(self, log: Log) -> None:
        """A8: existing streams keep their numbering and are listed; new ones follow the kind."""
        log.append([event(stream=("zero", "old"))])
        log.declare(StreamKind(name="zero", first_seq=0))
        log.append([event(stream=("zero", "old")), event(stream=("zero", "new"))])

        assert stream_seqs(log, ("zero", "old")) == [1, 2]
        assert stream_seqs(log, ("zero", "new")) == [0]
        assert [summary.stream_id for summary in log.streams()] == ["old", "new"]

    def test_repeated_declaration_changes_nothing(self, log: Log) -> None:
        """A8: repeating a declaration changes nothing, also for built-in kinds."""
        kind = StreamKind(name="case", closing_types=("won", "lost"), opening_type="opened")
        entry = EventType(event_type="paid", kind="case", schema=SCHEMA)
        for _ in range(2):
            log.declare(kind, entry, TRACE_STREAM_KIND, DEFAULT_STREAM_KIND)
        log.declare(
            EventType(event_type="paid", kind="case", schema=dict(reversed(SCHEMA.items())))
        )

        log.append([event("opened", stream=("case", "1"))])
        with open_on_same_store(log) as other:
            other.declare(kind, entry)

    def test_different_rules_under_a_declared_name_are_a_conflict(self, log: Log) -> None:
        """A8: different rules under a declared name or version are a conflict."""
        log.declare(StreamKind(name="case"), EventType(event_type="paid", schema=SCHEMA))
        others: list[Any] = [
            StreamKind(name="case", first_seq=0),
            StreamKind(name="case", numbered_by="caller"),
            StreamKind(name="case", opening_type="opened"),
            StreamKind(name="case", closing_types=("closed",)),
            StreamKind(name="case", catalogue="closed"),
            StreamKind(name="case", expected_seq_required=True),
            StreamKind(name="case", infrastructure=True),
            StreamKind(name="trace"),
            StreamKind(name="aggregate", first_seq=0),
            EventType(event_type="paid"),
            EventType(event_type="paid", schema={"type": "object"}),
            EventType(event_type="paid", schema=SCHEMA, kind="case"),
        ]

        for other in others:
            with assert_refused(log, "conflict"):
                log.declare(other)
        log.append([event("x", stream=("case", "1"))])
        assert stream_seqs(log, ("case", "1")) == [1]

    def test_a_changed_payload_needs_a_new_version(self, log: Log) -> None:
        """A8: several versions of a type can be declared; an undeclared one is refused."""
        log.declare(
            EventType(event_type="paid", event_version=1),
            EventType(event_type="paid", event_version=2, schema=SCHEMA),
        )
        log.append([event("paid"), event("paid", event_version=2, payload={"total": 1})])

        with assert_refused(log, "schema_violation", index=0, field="event_version"):
            log.append([event("paid", event_version=3, payload={"total": 1})])
        log.append([event("undeclared", event_version=9)])

    def test_payload_that_breaks_its_schema_is_refused(self, log: Log) -> None:
        """A8: a payload that breaks its schema is refused with its JSON path."""
        log.declare(EventType(event_type="paid", schema=SCHEMA))
        log.append([event("paid", payload={"total": 0, "more": "is fine"})])

        with assert_refused(log, "schema_violation", index=0, field="$.total"):
            log.append([event("paid", payload={})])
        with assert_refused(log, "schema_violation", index=1, field="$.total"):
            log.append([event("other"), event("paid", payload={"total": -1})])

    def test_infrastructure_has_its_own_tenant(self, log: Log) -> None:
        """K2: streams of an infrastructure kind live in the reserved tenant alone."""
        log.declare(StreamKind(name="node", infrastructure=True))

        with assert_refused(log, "invalid_argument", argument="tenant_id"):
            log.append([event(stream=("node", "1"))])
        log.for_tenant(INFRASTRUCTURE_TENANT).append([event(stream=("node", "1"))])
        assert list(log.read()) == []

    def test_closed_catalogue_accepts_declared_types_only(self, log: Log) -> None:
        """A5: a kind with a closed catalogue accepts only its declared types."""
        log.declare(
            StreamKind(name="case", catalogue="closed"),
            EventType(event_type="noted", kind="case"),
            EventType(event_type="free"),
        )
        log.append([event("noted", stream=("case", "1")), event("noted"), event("free")])

        for name in ("free", "absent", "Noted"):
            with assert_refused(log, "schema_violation", index=0, field="event_type"):
                log.append([event(name, stream=("case", "1"))])

    def test_declarations_apply_to_open_logs(self, log: Log) -> None:
        """A8: a declaration also applies to logs that were opened before it."""
        with open_on_same_store(log) as other:
            other.append([event("paid", payload={})])
            log.declare(
                StreamKind(name="case", first_seq=0, closing_types=("closed",)),
                EventType(event_type="paid", schema=SCHEMA),
            )

            with assert_refused(log, "schema_violation", field="$.total"):
                other.append([event("paid", payload={})])
            other.append([event("closed", stream=("case", "1"))])
            assert stream_seqs(log, ("case", "1")) == [0]
            with assert_refused(log, "conflict"):
                other.append([event("x", stream=("case", "1"))])

    def test_one_of_two_concurrent_declarations_wins(self, log: Log) -> None:
        """A8: of two concurrent declarations of a kind with different rules, one wins."""
        kinds = [StreamKind(name="case", first_seq=0), StreamKind(name="case", first_seq=1)]

        def operation(number: int) -> int:
            log.declare(kinds[number % 2])
            return number % 2

        outcomes = run_concurrently(operation, 8)
        winners = {outcome for outcome in outcomes if isinstance(outcome, int)}
        assert len(winners) == 1
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 4
        log.append([event(stream=("case", "1"))])
        assert stream_seqs(log, ("case", "1")) == [kinds[winners.pop()].first_seq]

    def test_append_with_outdated_rules_is_validated_again(self, log: Log) -> None:
        """A8: an append that was validated with outdated rules is validated again."""

        def operation(number: int) -> None:
            for round_number in range(5):
                if number == 0:
                    log.declare(EventType(event_type=f"type-{round_number}"))
                else:
                    log.append([event(stream=("s", str(number)))])

        assert run_concurrently(operation, 4) == [None] * 4
        assert log.head() == 15

    def test_payload_indexes_do_not_change_results(self, log: Log) -> None:
        """A8, D3: an index never changes results, whenever it is declared."""
        payloads: list[dict[str, Any]] = [
            {"seat": "12A", "price": 30, "labels": ["aisle", "late"]},
            {"seat": "12B", "price": 30.0, "labels": ["late"]},
            {"seat": ["12A"], "price": "30", "labels": []},
            {"seat": "12A", "price": True, "labels": "late"},
        ]
        predicates: list[tuple[dict[str, Any], list[int]]] = [
            ({"seat": "12A"}, [0, 3]),
            ({"seat": "12A", "price": 30}, [0]),
            ({"labels": ["late"]}, [0, 1]),
            ({"labels": ["late", "aisle"], "seat": "12A"}, [0]),
            ({"price": 30}, [0, 1]),
            ({"seat": "13F"}, []),
        ]
        indexes = [PayloadIndex("seat", path) for path in ("seat", "labels[]", "price")]
        for index in [None, *indexes]:
            if index is not None:
                log.declare(index)
            for payload in payloads:
                log.append([event("seat", payload=payload), event("other", payload=payload)])

        records = [record for record in log.read() if record.event_type == "seat"]
        for predicate, numbers_found in predicates:
            matches = log.query(Query([Filter(types=["seat"], payload=[predicate])])).records
            assert positions(matches) == [
                record.position
                for number, record in enumerate(records)
                if number % len(payloads) in numbers_found
            ]
        either = Filter(types=["seat", "other"], payload=[{"seat": "12B"}, {"price": "30"}])
        assert len(log.query(Query([either])).records) == 16
        assert verify(log.store).ok

    def test_one_of_several_racing_appends_on_an_indexed_path_wins(self, log: Log) -> None:
        """B9, D5: exactly one of several racing appends on a payload context wins."""
        log.declare(PayloadIndex("seat", "seat"))
        seat = Query([Filter(types=["seat"], payload=[{"seat": "12A"}])])

        def operation(number: int) -> int:
            reserved = event("seat", payload={"seat": "12A", "by": number})
            return log.append([reserved], ExpectedContext(seat, None)).first_position

        won = [outcome for outcome in run_concurrently(operation, 4) if isinstance(outcome, int)]
        assert won == [1]
        assert log.query(seat).context_version == 1
        with assert_refused(log, "conditional_append_conflict", expected=None, actual=1):
            operation(9)

    def test_an_index_is_declared_once(self, log: Log) -> None:
        """A8: declaring the same path again changes nothing, however it is spelled."""
        log.declare(PayloadIndex("seat", "a.b"), PayloadIndex("seat", 'a["b.c"][]'))
        version = log.store.rules().version
        log.declare(PayloadIndex("seat", "a.b"), PayloadIndex("seat", '["a"]["b"]'))
        assert log.store.rules().version == version
        log.declare(PayloadIndex("other", "a.b"), PayloadIndex("seat", "a"))
        assert log.store.rules().version == version + 2

    def test_new_index_covers_appends_of_other_processes(self, log: Log) -> None:
        """A8: events of other processes are indexed as soon as an index is declared."""
        with open_on_same_store(log) as other:
            other.append([event("seat", payload={"n": 0})])

            def operation(number: int) -> None:
                for round_number in range(1, 6):
                    if number == 0:
                        log.declare(PayloadIndex("seat", "n" * round_number))
                    else:
                        other.append([event("seat", payload={"n": number, "nn": round_number})])

            assert run_concurrently(operation, 4) == [None] * 4
        for number in range(4):
            query = Query([Filter(types=["seat"], payload=[{"n": number}])])
            assert len(log.query(query).records) == (5 if number else 1)
        for round_number in range(1, 6):
            query = Query([Filter(types=["seat"], payload=[{"nn": round_number}])])
            assert len(log.query(query).records) == 3
        assert verify(log.store).ok

    def test_invalid_declarations_are_refused(self, log: Log) -> None:
        """A8: invalid names, numbers and schemas are refused, and the error names them."""
        bad = "invalid_argument"
        version = log.store.rules().version
        cases: dict[str, tuple[Any, str]] = {
            "nothing of ours": ("case", "declarations"),
            "empty name": (_kind(name=""), "kind.name"),
            "name a number": (_kind(name=1), "kind.name"),
            "opening type": (_kind(name="k", opening_type=""), "kind.opening_type"),
            "closing type": (_kind(name="k", closing_types=("",)), "kind.closing_types"),
            "closing types a string": (
                _kind(name="k", closing_types="end"),
                "kind.closing_types",
            ),
            "first number": (_kind(name="k", first_seq=2), "kind.first_seq"),
            "first number a boolean": (_kind(name="k", first_seq=True), "kind.first_seq"),
            "who numbers": (_kind(name="k", numbered_by="me"), "kind.numbered_by"),
            "catalogue": (_kind(name="k", catalogue="half"), "kind.catalogue"),
            "expected": (
                _kind(name="k", expected_seq_required=1),
                "kind.expected_seq_required",
            ),
            "type name": (_entry(event_type=" x"), "event_type"),
            "version 0": (_entry(event_type="x", event_version=0), "event_version"),
            "version text": (_entry(event_type="x", event_version="1"), "event_version"),
            "version too large": (_entry(event_type="x", event_version=2**31), "event_version"),
            "kind empty": (_entry(event_type="x", kind=""), "kind"),
            "frozen catalogue": (_entry(event_type="x", kind="trace"), "kind"),
            "schema no object": (_entry(event_type="x", schema=[]), "schema"),
            "schema invalid": (_entry(event_type="x", schema={"type": "no"}), "schema"),
            "schema with NUL": (_entry(event_type="x", schema={"title": "\0"}), "schema"),
            "indexed type": (_index("", "a"), "event_type"),
            "path empty": (_index("x", ""), "path"),
            "path a tuple": (_index("x", ("a",)), "path"),
            "path with a number": (_index("x", "a[0]"), "path"),
            "path with NUL": (_index("x", '["\\u0000"]'), "path"),
        }
        assert_all_refused(
            log,
            log.declare,
            {name: (declaration, bad, field) for name, (declaration, field) in cases.items()},
        )
        assert log.store.rules().version == version
