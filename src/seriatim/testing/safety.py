"""Contract suite: tenants and guards (section K)."""

from __future__ import annotations

from typing import Any, Unpack

import pytest

from seriatim.core.errors import NotFound, SeriatimError
from seriatim.core.event import NewEvent
from seriatim.core.guard import BUILT_IN_GUARDS, Violation
from seriatim.core.kinds import StreamKind
from seriatim.core.query import Filter, Query
from seriatim.core.request import ExpectedContext, ExpectedSeq
from seriatim.factory import Log
from seriatim.testing.factories import (
    EventOptions,
    SharedStore,
    assert_refused,
    event,
    events,
    positions,
    stream_seqs,
    trace_event,
)

AWS = "AKIA" + "Q" * 16
GITHUB = "ghp_" + "a1" * 18


class GuardContract:
    """K1: secrets are never stored, with either built-in policy."""

    def test_payload_keys_and_envelope_are_scanned(self, log: Log) -> None:
        """K1: payload, object keys and envelope are scanned; errors contain no value."""
        places: list[tuple[dict[str, Any], str]] = [
            ({"payload": {"a": [{"b": AWS}]}}, "$.a[0].b"),
            ({"payload": {"note": f"the key is {GITHUB}."}}, "$.note"),
            ({"payload": {AWS: 1}}, "$.*"),
            ({"tags": ("fine", AWS)}, "tags[1]"),
            ({"metadata": {"label": AWS}}, "metadata.label"),
            ({"payload": {"password": 123456}}, "$.password"),
            ({"payload": {"password": ["x"]}}, "$.password[0]"),
            ({"metadata": {AWS: "a"}}, "metadata.*"),
            ({"event_type": AWS}, "event_type"),
            ({"event_id": AWS}, "event_id"),
            ({"stream": (AWS, "a")}, "stream_type"),
            ({"stream": ("order", AWS)}, "stream_id"),
            ({"producer_id": AWS}, "producer_id"),
            ({"request_id": AWS}, "request_id"),
            ({"app_id": AWS}, "app_id"),
            ({"env_id": AWS}, "env_id"),
            ({"actor_id": AWS}, "actor_id"),
            ({"source_system": AWS}, "source_system"),
            ({"correlation_id": AWS}, "correlation_id"),
            ({"causation_id": AWS}, "causation_id"),
            ({"idempotency_key": AWS}, "idempotency_key"),
        ]
        for fields, path in places:
            batch = [event(idempotency_key="a"), event(**({"idempotency_key": "b"} | fields))]
            with assert_refused(
                log, "pii_policy_violation", index=1, path=path, guard="default"
            ) as caught:
                log.append(batch)
            shown = str(caught[0].as_dict())
            assert AWS not in shown
            assert GITHUB not in shown
            assert caught[0].details["rule"]

    def test_idempotency_key_of_an_append_is_scanned(self, log: Log) -> None:
        """K1: a secret in the idempotency key of an append is refused, too."""
        with assert_refused(log, "pii_policy_violation", index=0, path="idempotency_key"):
            log.append([event()], idempotency_key=AWS)

    def test_default_policy_accepts_ordinary_text(self, log: Log) -> None:
        """K1: the default policy accepts ordinary text, including e-mail addresses."""
        for text in ("task-42", "Asia/Tokyo", "a@example.com", "Bearer of news", "ASIA", "sk-1"):
            log.append([event(payload={"text": text}, tags=(text,))])

    def test_traces_have_their_own_policy(self, log: Log) -> None:
        """K1, T2: traces refuse the frozen substrings in values, in any letter case."""

        def started(**fields: Unpack[EventOptions]) -> NewEvent:
            return trace_event("TraceStarted", "t", 0, **fields)

        payload = dict(started().payload)
        for text in ("task-42", "Asia/Tokyo", "xoxb-", "a bearer x", "TOKEN=1"):
            with assert_refused(log, "pii_policy_violation", path="$.note", guard="traces-v1"):
                log.append([started(payload=payload | {"note": text})])
        with assert_refused(log, "pii_policy_violation", path="tags[0]", guard="traces-v1"):
            log.append([started(tags=("password=x",))])
        with assert_refused(log, "pii_policy_violation", path="producer_id", guard="traces-v1"):
            log.append([started(producer_id="task-42")])
        log.append([started(payload=payload | {"token=": "a key is not scanned"})])

    def test_custom_guard_policy(self, log: Log) -> None:
        """K1: a log can be opened with another policy, built-in or custom."""

        class NoDucks:
            """A policy that refuses the word duck."""

            name = "no-ducks"

            def scan(self, seen: Any) -> Any:
                """Check the text of the payload."""
                return Violation("duck", "$") if "duck" in seen.payload_text else None

        with type(log)(SharedStore(log.store), guard=NoDucks()) as strict:
            with assert_refused(log, "pii_policy_violation", rule="duck", guard="no-ducks"):
                strict.append([event(payload={"a": "duck"})])
            if log.store.name == "http":  # the service has a guard of its own besides
                with assert_refused(log, "pii_policy_violation", guard="default"):
                    strict.append([event(payload={"a": AWS})])
            else:
                strict.append([event(payload={"a": AWS})])
        with type(log)(SharedStore(log.store), guard=BUILT_IN_GUARDS["personal"]) as personal:
            batch = [event(payload={"a": "jane@example.com"})]
            with assert_refused(log, "pii_policy_violation", path="$.a"):
                personal.append(batch)


QUICK: dict[str, Any] = {"poll_s": 0.02, "idle_timeout": 0.0}


class TenantContract:
    """K2: many tenants share one log and one global order."""

    @pytest.fixture
    def other(self, log: Log) -> Log:
        """Return the same log for another tenant, with two events of its own."""
        view = log.for_tenant("other")
        view.append([event("a", stream=("s", "1"), event_id="e-1", tags=("t",), n=1), event("b")])
        return view

    def test_positions_are_global(self, log: Log, other: Log) -> None:
        """K2: tenants learn nothing of each other except that positions advance."""
        log.append(events(1))
        other.append(events(1))

        assert positions(list(log.read())) == [3]
        assert positions(list(other.read())) == [1, 2, 4]
        assert log.head() == other.head() == 4

    def test_reads_are_limited_to_the_tenant(self, log: Log, other: Log) -> None:
        """K2: data of other tenants and missing data give identical results."""
        assert list(log.read()) == []
        assert log.page().records == []
        assert log.page().last_scanned == 2
        assert list(log.read_stream(("s", "1"))) == []
        assert log.last_event(("s", "1")) is None
        assert log.streams() == []
        with pytest.raises(NotFound) as foreign:
            log.event("e-1")
        with pytest.raises(NotFound) as absent:
            log.event("e-9")
        assert foreign.value.message.replace("e-1", "e-9") == absent.value.message
        assert other.event("e-1").position == 1

    def test_queries_are_limited_to_the_tenant(self, log: Log, other: Log) -> None:
        """K2: queries and contexts are within their tenant."""
        for selected in (
            Filter(types=["a"]),
            Filter(tags=["t"]),
            Filter(streams=[("s", "1")]),
            Filter(payload=[{"n": 1}]),
        ):
            assert log.query(Query([selected])).records == []
            assert log.query(Query([selected])).context_version is None
            assert other.query(Query([selected])).context_version == 1
        log.append(events(1), ExpectedContext(Query(), None))

    def test_subscriptions_are_limited_to_the_tenant(self, log: Log, other: Log) -> None:
        """K2: subscriptions and tails deliver only events of their tenant."""
        log.append(events(1))

        assert [positions(b) for b in log.subscribe("s", **QUICK)] == [[3]]
        assert [positions(b) for b in other.tail(after=0, **QUICK)] == [[1, 2]]

    def test_streams_keys_and_ids_are_scoped_by_tenant(self, log: Log, other: Log) -> None:
        """A1: streams, keys and ids of two tenants are independent."""
        log.append([event(stream=("s", "1"), event_id="e-1", n=2)], ExpectedSeq(("s", "1"), None))

        assert stream_seqs(log, ("s", "1")) == stream_seqs(other, ("s", "1")) == [1]
        with assert_refused(other, "idempotency_conflict") as caught:
            other.append([event(event_id="e-1", n=2)])
        assert caught[0].details["fields"] == ["payload", "stream", "event_type", "tags"]

    def test_declarations_apply_to_every_tenant(self, log: Log, other: Log) -> None:
        """A8: declared kinds hold for every tenant."""
        log.declare(StreamKind(name="zero", first_seq=0))
        other.append([event(stream=("zero", "1"))])

        assert stream_seqs(other, ("zero", "1")) == [0]

    def test_tenant_names_are_case_sensitive(self, log: Log) -> None:
        """A4: tenants are opaque and case-sensitive."""
        names = ["acme", "Acme", "acme/", "ac:me", "ａcme"]
        for name in names:
            log.for_tenant(name).append(events(1))

        assert [positions(list(log.for_tenant(name).read())) for name in names] == [
            [number] for number in range(1, 6)
        ]

    def test_reserved_name_is_no_tenant(self, log: Log) -> None:
        """K2: `*` stands for every tenant, so it is refused as the name of a tenant."""
        with assert_refused(log, "invalid_argument") as caught:
            log.for_tenant("*")
        assert "stands for all" in caught[0].message
        with pytest.raises(SeriatimError):
            log.append([event(tenant_id="*")])
        assert log.head() == 0
