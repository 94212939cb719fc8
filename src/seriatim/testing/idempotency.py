"""Section C: idempotency keys and event ids, and retries of whole batches."""

from __future__ import annotations

import logging
import uuid
from functools import partial
from typing import Any

import pytest

from seriatim.config import Settings
from seriatim.core.event import AppendResult, NewEvent
from seriatim.core.ids import event_key
from seriatim.factory import Log
from seriatim.profiles.aggregate_values import AGGREGATES_PROFILE
from seriatim.testing.factories import (
    assert_refused,
    assert_unchanged,
    event,
    events,
    open_on_same_store,
    run_concurrently,
)

_event: Any = event  # for values that its types forbid

BASE: dict[str, Any] = {
    "payload": {"n": 1},
    "stream": ("s", "1"),
    "event_version": 1,
    "source_system": "web",
    "source_subsystem": "cart",
    "actor_type": "user",
    "actor_id": "u-1",
    "correlation_id": "c-1",
    "causation_id": "e-0",
    "tags": ("a", "b"),
}

COMPARED: dict[str, tuple[dict[str, Any], str]] = {
    "payload": ({"payload": {"n": 2}}, "payload"),
    "stream id": ({"stream": ("s", "2")}, "stream"),
    "stream type": ({"stream": ("r", "1")}, "stream"),
    "no stream": ({"stream": None}, "stream"),
    "event type": ({"event_type": "other"}, "event_type"),
    "source": ({"source_system": "app"}, "source"),
    "no source": ({"source_system": None}, "source"),
    "subsystem": ({"source_subsystem": "search"}, "source"),
    "actor type": ({"actor_type": "system"}, "actor"),
    "actor": ({"actor_id": "u-2"}, "actor"),
    "correlation": ({"correlation_id": "c-2"}, "correlation_id"),
    "causation": ({"causation_id": None}, "causation_id"),
    "version": ({"event_version": 2}, "event_version"),
    "order of tags": ({"tags": ("b", "a")}, "tags"),
    "fewer tags": ({"tags": ("a",)}, "tags"),
}

# An id that is hashed to an index key, and the UUID that is that key.
HASHED = "order-1"
UUID_OF_HASH = str(uuid.UUID(bytes=event_key(HASHED)))

NOT_COMPARED: dict[str, dict[str, Any]] = {
    "stream_seq": {"stream_seq": 9},
    "occurred_at": {"occurred_at": "2020-01-01T00:00:00Z"},
    "request_id": {"request_id": "r-2"},
    "app_id": {"app_id": "other"},
    "env_id": {"env_id": "other"},
    "metadata": {"metadata": {"label": "other"}},
    "order of keys": {"payload": {"n": 1}},
}


def _base(fields: dict[str, Any]) -> Any:
    values = {"event_type": "thing.happened"} | BASE | fields
    return event(**values)


def _append_batch(log: Log, batch: list[NewEvent], key: str | None, _thread: int) -> AppendResult:
    return log.append(batch, idempotency_key=key)


class IdempotencyContract:
    """C1 to C4, C7: a retry returns the stored events; different content is a conflict."""

    @pytest.mark.parametrize("ids", [(HASHED, UUID_OF_HASH), (UUID_OF_HASH, HASHED)])
    def test_ids_that_share_an_index_key(self, log: Log, ids: tuple[str, str]) -> None:
        """C3, A4: events with different ids are different events, each found by its id."""
        for number, event_id in enumerate(ids, start=1):
            assert log.append([event(event_id=event_id, n=number)]).first_position == number
        for number, event_id in enumerate(ids, start=1):
            record = log.event(event_id)
            assert (record.event_id, record.position) == (event_id, number)
            retry = log.append([event(event_id=event_id, n=number)])
            assert (retry.replayed, retry.first_position) == (True, number)
            with assert_refused(log, "idempotency_conflict", fields=["payload"]):
                log.append([event(event_id=event_id, n=9)])
        assert [record.event_id for record in log.read()] == list(ids)

    def test_ids_that_share_an_index_key_in_one_append(self, log: Log) -> None:
        """C3, C4: ids that share an index key are distinct in one batch and between tenants."""
        batch = [event(event_id=HASHED, n=1), event(event_id=UUID_OF_HASH, n=2)]
        assert log.append(batch).count == 2
        assert log.append(batch).replayed
        assert log.event(UUID_OF_HASH).payload == {"n": 2}
        other = log.for_tenant("other")
        assert other.append([event(event_id=UUID_OF_HASH, n=3)]).first_position == 3
        with assert_refused(log, "not_found"):
            other.event(HASHED)

    def test_only_one_of_two_ids_is_stored(self, log: Log) -> None:
        """C3, L3: an id is not found by the idempotency key of another event."""
        log.append([event(event_id=HASHED)])
        with assert_refused(log, "not_found"):
            log.event(UUID_OF_HASH)

    def test_a_retry_returns_the_original(self, log: Log) -> None:
        """C2: the same key with the same content returns the first record."""
        first = log.append([_base({"idempotency_key": "k"})])
        with assert_unchanged(log):
            retry = log.append([_base({"idempotency_key": "k"})])

        assert retry.replayed
        assert (retry.first_position, retry.last_position, retry.count) == (1, 1, 1)
        assert retry.records == first.records

    @pytest.mark.parametrize("by", ["idempotency_key", "event_id"])
    def test_compared_fields_conflict(self, log: Log, by: str) -> None:
        """C2, C3: a difference in a compared field is a conflict that names the field."""
        log.append([_base({by: "k"})])

        for name, (change, field) in COMPARED.items():
            with assert_refused(log, "idempotency_conflict", index=0, fields=[field]) as caught:
                log.append([_base({by: "k"} | change)])
            assert field in caught[0].message, name

    def test_all_differing_fields_are_named(self, log: Log) -> None:
        """C2: a conflict names every field that differs."""
        log.append([_base({"idempotency_key": "k"})])

        with assert_refused(log, "idempotency_conflict", fields=["payload", "actor", "tags"]):
            log.append(
                [_base({"idempotency_key": "k", "payload": {}, "actor_id": "x", "tags": ()})]
            )

    @pytest.mark.parametrize("by", ["idempotency_key", "event_id"])
    def test_differences_in_other_fields_are_ignored(self, log: Log, by: str) -> None:
        """C2: differences in number, id, times, request id, scopes and metadata are ignored."""
        first = log.append([_base({by: "k"})])

        for name, change in NOT_COMPARED.items():
            with assert_unchanged(log):
                retry = log.append([_base({by: "k"} | change)])
            assert retry.replayed, name
            assert retry.records == first.records, name

    def test_event_id_is_not_compared_under_a_known_key(self, log: Log) -> None:
        """C2: under a known key the event id is not compared."""
        log.append([_base({"idempotency_key": "k", "event_id": "e-1"})])

        retry = log.append([_base({"idempotency_key": "k", "event_id": "e-2"})])

        assert [record.event_id for record in retry.records] == ["e-1"]

    def test_keys_belong_to_their_producer(self, log: Log) -> None:
        """C1: the same key of two producers is two events, also if one event names no producer."""
        for producer in ("a", "b", None):
            log.append([event(producer_id=producer, idempotency_key="k")])
        assert log.head() == 3

        for number, producer in enumerate(("a", "b", None), start=1):
            retry = log.append([event(producer_id=producer, idempotency_key="k")])
            assert (retry.replayed, retry.first_position) == (True, number)

    def test_keys_belong_to_their_tenant(self, log: Log) -> None:
        """C1: the same key or event id in two tenants is two events."""
        other = log.for_tenant("other")
        for tenant_log in (log, other):
            assert not tenant_log.append([event(idempotency_key="k", event_id="e", n=1)]).replayed

        with assert_refused(other, "idempotency_conflict"):
            other.append([event(idempotency_key="k", n=2)])
        assert log.head() == 2

    def test_keys_are_exact(self, log: Log) -> None:
        """C1: keys are opaque bytes: case, white space and control characters count."""
        keys = ["k", "K", " k", "k ", "k\n", "ｋ", "x" * 200, "é" * 100]
        for key in keys:
            assert not log.append([event(idempotency_key=key)]).replayed
        for key in keys:
            assert log.append([event(idempotency_key=key)]).replayed
        assert log.head() == len(keys)

    def test_key_has_1_to_200_bytes(self, log: Log) -> None:
        """C1: a key has 1 to 200 UTF-8 bytes and no NUL."""
        for key in ("", "x" * 201, "é" * 101, "a\0b", "\ud800", 7):
            with assert_refused(log, "invalid_event", index=0, field="idempotency_key"):
                log.append([_event(idempotency_key=key)])

    def test_the_same_id_returns_the_original(self, log: Log) -> None:
        """C3: a stored event id with the same content returns the record."""
        for event_id in ("e-1", "0190b5e2-0000-7000-8000-000000000001"):
            first = log.append([event(event_id=event_id, n=1)])
            with assert_unchanged(log):
                retry = log.append([event(event_id=event_id, n=1)])
            assert retry.replayed
            assert retry.records == first.records

    def test_key_and_id_of_different_records_are_a_conflict(self, log: Log) -> None:
        """C3: a key and an id of two different records are a conflict."""
        log.append([event(idempotency_key="k-1", event_id="e-1")])
        log.append([event(idempotency_key="k-2", event_id="e-2")])

        with assert_refused(log, "idempotency_conflict", index=0, fields=["event_id"]):
            log.append([event(idempotency_key="k-1", event_id="e-2")])

    def test_known_id_under_a_new_key_is_a_retry(self, log: Log) -> None:
        """C3: a stored id with the same content is a retry, also with a new key."""
        log.append([event(event_id="e-1", idempotency_key="k-1")])

        assert log.append([event(event_id="e-1", idempotency_key="k-2")]).replayed
        assert log.head() == 1

    def test_a_tolerated_mismatch_warns(self, log: Log, caplog: pytest.LogCaptureFixture) -> None:
        """C3: with `warn`, a stored id with different content returns the record and logs."""
        first = log.append([event(event_id="e-1", n=1)])

        with (
            open_on_same_store(log, settings=Settings(on_id_mismatch="warn")) as lenient,
            caplog.at_level(logging.WARNING),
        ):
            with assert_unchanged(log):
                retry = lenient.append([event(event_id="e-1", n=2, tags=("x",))])
            assert retry.replayed
            assert retry.records == first.records
            assert retry.id_mismatch == ("payload", "tags")
            assert "payload, tags" in caplog.text
            lenient.append([event(idempotency_key="k", n=1)])
            with assert_refused(log, "idempotency_conflict", fields=["payload"]):
                lenient.append([event(idempotency_key="k", n=2)])

    def test_concurrent_identical_appends_store_one_record(self, log: Log) -> None:
        """C4: 24 concurrent identical appends store one record and return equal receipts."""
        outcomes = run_concurrently(lambda _: log.append([event(idempotency_key="k", n=1)]), 24)

        assert log.head() == 1
        results = [outcome for outcome in outcomes if isinstance(outcome, AppendResult)]
        assert len(results) == 24
        assert sum(not result.replayed for result in results) == 1
        assert {result.records[0].event_id for result in results} == {
            record.event_id for record in log.read()
        }

    def test_concurrent_identical_batches_store_one_append(self, log: Log) -> None:
        """C4: concurrent identical batches store one append, with event ids or with one key."""
        by_id = [event(event_id=f"e-{number}", n=number) for number in range(3)]
        for batch, key in ((by_id, None), (events(3), "whole")):
            append_batch = partial(_append_batch, log, batch, key)
            outcomes = run_concurrently(append_batch, 8)
            results = [outcome for outcome in outcomes if isinstance(outcome, AppendResult)]
            assert len(results) == 8
            assert len({result.first_position for result in results}) == 1
            assert sum(not result.replayed for result in results) == 1
        assert log.head() == 6

    def test_retry_of_a_batch_returns_its_receipt(self, log: Log) -> None:
        """C4: a batch whose keys are all stored and match returns the first receipt."""
        batch = [event(idempotency_key=f"k-{number}", n=number) for number in range(3)]
        first = log.append(batch)

        with assert_unchanged(log):
            retry = log.append(batch)

        assert (retry.replayed, retry.first_position, retry.last_position) == (True, 1, 3)
        assert retry.records == first.records

    def test_partly_stored_batch_is_a_conflict(self, log: Log) -> None:
        """C4: a batch of which only a part is stored is a conflict."""
        known, new = event(idempotency_key="k-1"), event(idempotency_key="k-2")
        log.append([known])

        for batch in ([known, new], [new, known]):
            with assert_refused(log, "idempotency_conflict", index=1):
                log.append(batch)

    def test_keys_of_two_appends_are_a_conflict(self, log: Log) -> None:
        """C4: a batch with keys of two appends is a conflict."""
        one, two = event(idempotency_key="k-1"), event(idempotency_key="k-2")
        log.append([one])
        log.append([two])

        with assert_refused(log, "idempotency_conflict", index=1, fields=["batch"]):
            log.append([one, two])

    def test_keys_in_another_order_are_a_conflict(self, log: Log) -> None:
        """C4: the keys of one append in another order are a conflict."""
        one, two = event(idempotency_key="k-1"), event(idempotency_key="k-2")
        log.append([one, two])

        with assert_refused(log, "idempotency_conflict", index=1, fields=["batch"]):
            log.append([two, one])

    def test_every_event_has_a_key_or_none(self, log: Log) -> None:
        """C4: a batch in which only some events have keys is refused."""
        keyed, bare = event(idempotency_key="k"), event()

        with assert_refused(log, "invalid_event", index=1, field="idempotency_key"):
            log.append([keyed, bare])
        with assert_refused(log, "invalid_event", index=0, field="idempotency_key"):
            log.append([bare, keyed])

    def test_repeated_keys_and_ids_are_refused(self, log: Log) -> None:
        """C4: a repeated key or id in a batch is refused, unless the producers differ."""
        with assert_refused(log, "invalid_event", index=1, field="idempotency_key"):
            log.append([event(idempotency_key="k", n=1), event(idempotency_key="k", n=2)])
        with assert_refused(log, "invalid_event", index=2, field="event_id"):
            log.append([event(), event(event_id="e"), event(event_id="e")])
        log.append([event(idempotency_key="k"), event(idempotency_key="k", producer_id="p")])

    def test_key_of_an_append_derives_keys_of_its_events(self, log: Log) -> None:
        """C4: the key k of an append gives its events the keys k/0, k/1 and so on."""
        log.append(events(3), idempotency_key="k")
        assert [record.idempotency_key for record in log.read()] == ["k/0", "k/1", "k/2"]

        assert log.append(events(3), idempotency_key="k").replayed
        with assert_refused(log, "idempotency_conflict", index=3):
            log.append(events(4), idempotency_key="k")
        with assert_refused(log, "idempotency_conflict", index=0, fields=["event_type"]):
            log.append(events(3, "other"), idempotency_key="k")

    def test_derived_keys_obey_the_length_limit(self, log: Log) -> None:
        """C4: derived keys obey the length limit, and exclude keys of single events."""
        no_keys: list[Any] = ["", "x" * 199, "a\0", 7]
        for key in no_keys:
            with assert_refused(log, "invalid_argument", argument="idempotency_key"):
                log.append(events(1), idempotency_key=key)
        with assert_refused(log, "invalid_argument", argument="idempotency_key"):
            log.append([event(idempotency_key="own")], idempotency_key="k")
        with assert_refused(log, "invalid_argument", argument="idempotency_key"):
            log.append(events(11), idempotency_key="x" * 198)
        log.append(events(10), idempotency_key="x" * 198)

    def test_refused_append_leaves_its_key_unused(self, log: Log) -> None:
        """C4: a refused append leaves its key unused."""
        bad = event(idempotency_key="k", stream=("s", "1"), stream_seq=7)
        with assert_refused(log, "event_sequence_invalid"):
            log.append([bad])

        assert not log.append([event(idempotency_key="k", n=1)]).replayed

    def test_aggregates_share_their_commands_key(self, log: Log) -> None:
        """C7: in aggregates all events of a command share its key, which is not unique."""
        fields: dict[str, Any] = {
            "stream": ("order", "1"),
            "request_id": "r",
            "actor_type": "user",
            "actor_id": "u",
            "idempotency_key": "command-1",
        }
        for _ in range(2):
            batch = [event(n=1, **fields), event(n=2, **fields)]
            assert not log.append_draft(log.draft(AGGREGATES_PROFILE, batch)).replayed

        assert [record.idempotency_key for record in log.read()] == ["command-1"] * 4
        assert not log.append([event(idempotency_key="command-1")]).replayed
