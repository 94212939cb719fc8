"""C8: a retry of a decision returns the first receipt; appends are found by their keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from seriatim.core.errors import IdempotencyKeyReuse, SeriatimError
from seriatim.core.event import AppendResult, EventRecord, NewEvent
from seriatim.core.query import Filter, Query
from seriatim.core.request import Command, ExpectedSeq
from seriatim.factory import Log
from seriatim.testing.factories import (
    assert_all_refused,
    assert_refused,
    assert_unchanged,
    event,
    events,
    run_concurrently,
)

STOCK = ("stock", "sku-1")
TAKEN = Query([Filter(tags=["sku-1"])])
STYLES = pytest.mark.parametrize("style", ["sync", "aio", "coroutine"])


class NotEnoughStockError(Exception):
    """Raised by the decider of these tests to refuse."""


_REQUEST = {"count": 1}
_RESPONSE = {"order": "o-1"}


def command(
    *,
    actor: str = "u-1",
    endpoint: str = "POST /orders",
    key: str = "c-1",
    request: Any = _REQUEST,
    response: Any = _RESPONSE,
) -> Command:
    """Return a command."""
    return Command(actor=actor, endpoint=endpoint, key=key, request=request, response=response)


class TakeLastPiece:
    """A decider that takes the last piece in stock; a second run finds none and raises."""

    def __init__(self, count: int = 1) -> None:
        self.runs = 0
        self._count = count

    def __call__(self, records: list[EventRecord]) -> list[NewEvent]:
        """Return the events of the decision."""
        self.runs += 1
        if records:
            raise NotEnoughStockError
        return events(self._count, "taken", stream=STOCK, tags=("sku-1",))


def decide(
    log: Log,
    style: str,
    context: Any,
    decider: Any,
    *,
    idempotency_key: str | None = None,
    command: Command | None = None,
) -> AppendResult | None:
    """Call decide in one of the three styles: sync, asyncio, asyncio with an async decider."""
    if style == "sync":
        return log.decide(context, decider, idempotency_key=idempotency_key, command=command)

    async def awaited(records: list[EventRecord]) -> list[NewEvent]:
        new_events: list[NewEvent] = decider(records)
        return new_events

    used = decider if style == "aio" else awaited
    return asyncio.run(
        log.aio.decide(context, used, idempotency_key=idempotency_key, command=command)
    )


def look_up(style: str, sync: Callable[[], Any], awaited: Callable[[], Any]) -> Any:
    """Call a lookup in one of the styles."""

    async def operation() -> Any:
        return await awaited()

    return sync() if style == "sync" else asyncio.run(operation())


class DecisionContract:
    """C8: decide looks up its key before it runs the decider."""

    @STYLES
    @pytest.mark.parametrize("context", [STOCK, TAKEN], ids=["stream", "context"])
    @pytest.mark.parametrize("by", ["key", "command"])
    def test_a_retry_returns_the_first_receipt(
        self, log: Log, by: str, context: Any, style: str
    ) -> None:
        """C8: the decider runs once; it would refuse the retry, which returns the receipt."""
        how: dict[str, Any] = {"idempotency_key": "k-1"} if by == "key" else {"command": command()}
        decider = TakeLastPiece(3)
        first = decide(log, style, context, decider, **how)
        with assert_unchanged(log):
            retry = decide(log, style, context, decider, **how)

        assert first is not None
        assert retry is not None
        assert decider.runs == 1
        assert (first.replayed, retry.replayed) == (False, True)
        assert (first.first_position, first.count) == (retry.first_position, retry.count) == (1, 3)
        assert first.records == retry.records
        assert first.response == retry.response
        assert retry.response == (None if by == "key" else {"order": "o-1"})

    def test_without_a_key_the_decider_runs_again(self, log: Log) -> None:
        """C8: without a key or command, decide looks nothing up."""
        decider = TakeLastPiece()
        log.decide(STOCK, decider)
        with pytest.raises(NotEnoughStockError):
            log.decide(STOCK, decider)

        assert decider.runs == 2

    def test_another_request_under_a_known_command_is_refused(self, log: Log) -> None:
        """C8, C5: a command key with a different request is refused before the decider runs."""
        decider = TakeLastPiece()
        log.decide(STOCK, decider, command=command())
        with assert_unchanged(log), pytest.raises(IdempotencyKeyReuse):
            log.decide(STOCK, decider, command=command(request={"count": 2}))

        assert decider.runs == 1

    def test_a_refusal_leaves_the_key_free(self, log: Log) -> None:
        """C8: a decision that was refused or empty is not stored, and can be retried."""

        def refuse(_: list[EventRecord]) -> list[NewEvent]:
            raise NotEnoughStockError

        with assert_unchanged(log):
            with pytest.raises(NotEnoughStockError):
                log.decide(STOCK, refuse, idempotency_key="k-1")
            assert log.decide(STOCK, lambda _: [], idempotency_key="k-1") is None
        result = log.decide(STOCK, TakeLastPiece(), idempotency_key="k-1")

        assert result is not None
        assert not result.replayed

    @pytest.mark.parametrize("by", ["key", "command"])
    def test_concurrent_duplicates_are_decided_once(self, log: Log, by: str) -> None:
        """C8, C5: concurrent calls with one key store one decision and get the same receipt."""
        how: dict[str, Any] = {"idempotency_key": "k-1"} if by == "key" else {"command": command()}

        def operation(number: int) -> AppendResult | None:
            # Each would decide otherwise, and on another number of events.
            new_events = events(1 + number % 3, f"by-{number}", stream=STOCK)
            return log.decide(STOCK, lambda _: new_events, attempts=50, **how)

        outcomes = run_concurrently(operation, 8)

        assert [
            outcome for outcome in outcomes if isinstance(outcome, SeriatimError) or outcome is None
        ] == []
        results = [outcome for outcome in outcomes if isinstance(outcome, AppendResult)]
        assert all(outcome.records == results[0].records for outcome in results)
        assert sum(not outcome.replayed for outcome in results) == 1
        assert log.head() == results[0].count

    def test_keys_are_per_producer(self, log: Log) -> None:
        """C8, C1: the key of a decision is scoped by the producer of its events."""

        def decider(_: list[EventRecord]) -> list[NewEvent]:
            return [event("taken", producer_id="p-1")]

        with assert_refused(log, "invalid_argument", argument="producer_id"):
            log.decide(STOCK, decider, idempotency_key="k-1")
        first = log.decide(TAKEN, decider, idempotency_key="k-1", producer_id="p-1")
        retry = log.decide(TAKEN, decider, idempotency_key="k-1", producer_id="p-1")

        assert first is not None
        assert retry is not None
        assert retry.records == first.records
        assert log.find_append("k-1") is None
        assert log.find_append("k-1", producer_id="p-1") is not None

    @pytest.mark.parametrize("style", ["sync", "aio"])
    def test_derived_keys_are_not_keys_of_decisions(self, log: Log, style: str) -> None:
        """C8, C4: the derived key k/0 of an event is not the key k/0 of another decision."""
        log.append([event("other", payload={"n": 1})], idempotency_key="k")
        log.append(
            [
                event("other", payload={"n": 2}, idempotency_key="single"),
                event("other", payload={"n": 3}, idempotency_key="within/0"),
            ]
        )
        decided = 0
        for key in ("k/0", "single"):
            taking = TakeLastPiece()
            stream = ("stock", key)
            result = decide(log, style, stream, taking, idempotency_key=key)
            retry = decide(log, style, stream, taking, idempotency_key=key)

            assert result is not None
            assert retry is not None
            assert [record.event_type for record in result.records] == ["taken"]
            assert retry.records == result.records
            decided += taking.runs
        assert decided == 2
        with assert_refused(log, "idempotency_conflict"):
            decide(log, style, ("stock", "new"), TakeLastPiece(), idempotency_key="within")

    @pytest.mark.parametrize("style", ["sync", "aio"])
    def test_an_append_is_found_by_its_key(self, log: Log, style: str) -> None:
        """C8: the key of an append, or of one of its events, finds the whole append."""
        log.append(events(2, "before"))
        whole = log.append(events(20), idempotency_key="k-1")
        single = log.append([event(n=1, idempotency_key="a"), event(n=2, idempotency_key="b")])
        log.append(events(2, "after"))

        def find(key: str) -> AppendResult | None:
            found: AppendResult | None = look_up(
                style, lambda: log.find_append(key), lambda: log.aio.find_append(key)
            )
            return found

        for key in ("k-1", "k-1/0", "k-1/19"):
            found = find(key)
            assert found is not None
            assert (found.records, found.replayed) == (whole.records, True)
        for key in ("a", "b"):
            found = find(key)
            assert found is not None
            assert found.records == single.records
        assert [find(key) for key in ("k-2", "k", "k-1/20", "A")] == [None] * 4

    @pytest.mark.parametrize("style", ["sync", "aio"])
    def test_an_append_is_found_by_its_command(self, log: Log, style: str) -> None:
        """C8: actor, endpoint and key find the append and the stored response."""
        log.append(events(1, "before"))
        stored = log.append(events(2), command=command())
        names = {"actor": "u-1", "endpoint": "POST /orders", "key": "c-1"}

        def find(**other: str) -> AppendResult | None:
            given = names | other
            found: AppendResult | None = look_up(
                style,
                lambda: log.find_command(**given),
                lambda: log.aio.find_command(**given),
            )
            return found

        found = find()
        assert found is not None
        assert (found.records, found.response) == (stored.records, {"order": "o-1"})
        for other in ({"actor": "u-2"}, {"endpoint": "POST /returns"}, {"key": "c-2"}):
            assert find(**other) is None

    def test_foreign_and_missing_appends_look_the_same(self, log: Log) -> None:
        """C8, K2: another tenant finds nothing, as if nothing were stored."""
        log.append(events(1), idempotency_key="k-1", command=command())
        other = log.for_tenant("other")

        assert other.find_append("k-1") is None
        assert other.find_command(actor="u-1", endpoint="POST /orders", key="c-1") is None

    def test_large_append_is_found_complete(self, log: Log) -> None:
        """C8: a large append is found complete, in order, and without other events."""
        log.append(events(3, "before"))
        stored = log.append(events(300), ExpectedSeq(("s", "1"), None), "k-1", command=command())
        log.append(events(3, "after"))
        found = log.find_append("k-1")
        by_command = log.find_command(actor="u-1", endpoint="POST /orders", key="c-1")

        assert found is not None
        assert by_command is not None
        assert found.records == by_command.records == stored.records

    def test_lookup_arguments_are_validated(self, log: Log) -> None:
        """C8, C1: an invalid key, actor or endpoint is refused, and the error names it."""
        bad = "invalid_argument"
        assert_all_refused(
            log,
            log.find_append,
            {
                "empty": ("", bad, "idempotency_key"),
                "NUL": ("a\0", bad, "idempotency_key"),
                "long": ("x" * 201, bad, "idempotency_key"),
            },
        )
        assert_all_refused(
            log,
            lambda given: log.find_command(**given),
            {
                "actor": ({"actor": "", "endpoint": "e", "key": "k"}, bad, "actor"),
                "endpoint": ({"actor": "a", "endpoint": " e", "key": "k"}, bad, "endpoint"),
                "key": ({"actor": "a", "endpoint": "e", "key": ""}, bad, "key"),
            },
        )
