"""K2: tenants never see each other's data through any method of the library."""

from __future__ import annotations

from typing import Any

import pytest

from seriatim.core.errors import NotFound, SeriatimError
from seriatim.core.kinds import StreamKind
from seriatim.core.query import Filter, Query
from seriatim.core.request import ExpectedContext, ExpectedSeq
from seriatim.factory import Log
from seriatim.testing.factories import assert_refused, event, events, positions, stream_seqs

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
        """K2: tenants learn nothing of each other but the growth of the shared order."""
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
        assert foreign.value.message == absent.value.message
        assert other.event("e-1").position == 1

    def test_queries_are_limited_to_the_tenant(self, log: Log, other: Log) -> None:
        """K2: queries and contexts are within their tenant."""
        for one in (
            Filter(types=["a"]),
            Filter(tags=["t"]),
            Filter(streams=[("s", "1")]),
            Filter(payload=[{"n": 1}]),
        ):
            assert log.query(Query([one])).records == []
            assert log.query(Query([one])).context_version is None
            assert other.query(Query([one])).context_version == 1
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

    def test_tenants_are_ids(self, log: Log) -> None:
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
