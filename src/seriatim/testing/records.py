"""Section A: the fields of a record, which are stored exactly as given."""

from __future__ import annotations

import re
from typing import Any

from seriatim.core.canonical import hash_text
from seriatim.core.event import EventRecord, NewEvent
from seriatim.core.ids import is_uuid
from seriatim.factory import Log
from seriatim.profiles.facts import FACTS_PROFILE
from seriatim.testing.factories import event, events, positions, stream_seqs

FULL: dict[str, Any] = {
    "event_type": "order.placed",
    "payload": {"total": 12, "lines": [{"sku": "ä"}]},
    "stream": ("order", "o-1"),
    "event_id": "e-1",
    "event_version": 3,
    "occurred_at": "2024-05-01T12:00:00.5+02:00",
    "producer_id": "shop",
    "source_system": "web",
    "source_subsystem": "cart",
    "actor_type": "user",
    "actor_id": "u-1",
    "request_id": "r-1",
    "correlation_id": "c-1",
    "causation_id": "e-0",
    "idempotency_key": "k-1",
    "app_id": "app",
    "env_id": "prod",
    "metadata": {"traceparent": "00-ab-cd-01", "empty": ""},
    "tags": ("b", "a", "b"),
}

RFC3339_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class RecordContract:
    """A1 to A4: the record, its JSON and its ids."""

    def test_every_field_is_kept(self, log: Log) -> None:
        """A1: a record has all given fields and those that the log adds."""
        log.append([event()])
        given = NewEvent(**FULL)

        log.append([given])
        (record,) = log.read(after=1)

        for name in FULL.keys() - {"payload", "metadata", "stream"}:
            assert getattr(record, name) == getattr(given, name), name
        assert record.stream == ("order", "o-1")
        assert record.stream_seq == 1
        assert record.payload_json == '{"lines":[{"sku":"ä"}],"total":12}'
        assert record.payload_hash == hash_text(record.payload_json)
        assert dict(record.metadata) == FULL["metadata"]
        assert (record.position, record.append_position) == (2, 2)
        assert record.tenant_id == "default"
        assert RFC3339_UTC.fullmatch(record.recorded_at)

    def test_a_plain_fact_has_no_stream(self, log: Log) -> None:
        """A1: without a stream there is no number; ids and times come from the log."""
        log.append([event()])
        (record,) = log.read()

        assert record.stream is None
        assert (record.stream_type, record.stream_id, record.stream_seq) == (None, None, None)
        assert is_uuid(record.event_id)
        assert record.event_id[14] == "7"
        assert record.occurred_at == record.recorded_at
        assert (record.tags, dict(record.metadata)) == ((), {})

    def test_the_receipt_is_what_is_read(self, log: Log) -> None:
        """A1: an append's own records equal those that every read returns."""
        given = [NewEvent(**FULL), event(stream=("order", "o-2"), idempotency_key="k-2")]

        result = log.append(given)

        assert result.records == tuple(log.read())
        assert all(type(record) is EventRecord for record in result.records)

    def test_tags_given_as_a_list(self, log: Log) -> None:
        """A1: a list of tags is kept in order, and read back as it is in the receipt."""
        result = log.append([{"event_type": "x", "tags": ["b", "a"]}])

        assert [record.tags for record in log.read()] == [("b", "a")]
        assert result.records == tuple(log.read())

    def test_new_ids_rise(self, log: Log) -> None:
        """A1: ids made by the log are UUIDv7s that sort as they were made."""
        made = [record.event_id for record in log.append(events(50)).records]

        assert made == sorted(made)
        assert len(set(made)) == 50

    def test_appends_keep_their_bounds(self, log: Log) -> None:
        """A1: append_position separates one append from the next."""
        log.append(events(3))
        log.append(events(1))
        log.append(events(2))

        assert [record.append_position for record in log.read()] == [1, 1, 1, 4, 5, 5]

    def test_payloads_come_back_exactly(self, log: Log) -> None:
        """A2: JSON values are stored unchanged: any integer, any text, no normalisation."""
        numbers_kept = [0, -1, 2**63, -(2**63) - 1, 10**300, 1.0, 1e16, -0.0, 1e-7, 0.1]
        texts = ["", " ", "\t\n", '"\\', "ﬁ", "\u00e9", "e\u0301", "🦆", "\x7f", "\u2028"]
        given = {"a": numbers_kept, "b": texts, "c": [{}, [], None, True, False], "Z": {"ä": 1}}
        log.append([event(payload=given)])
        (record,) = log.read()

        assert record.payload == given
        assert repr(record.payload["a"]) == repr(numbers_kept)

    def test_keys_are_sorted_by_code_point(self, log: Log) -> None:
        """A2: canonical text sorts keys at every level and escapes nothing it need not."""
        log.append([event(payload={"é": 1, "z": {"b": 1, "B": 2}, "𝒜": 3, "ﬁ": 4})])
        (record,) = log.read()

        assert record.payload_json == '{"z":{"B":2,"b":1},"é":1,"ﬁ":4,"𝒜":3}'

    def test_floats_have_their_shortest_form(self, log: Log) -> None:
        """A2: floats are written in shortest round-trip form."""
        log.append([event(payload={"f": [1.0, 1e16, -0.0, 0.1, 1e23]})])
        (record,) = log.read()

        assert record.payload_json == '{"f":[1.0,1e16,-0.0,0.1,1e23]}'

    def test_equal_values_have_equal_hashes(self, log: Log) -> None:
        """A2: the hash depends on the values, not on the order of keys."""
        first, second, third = log.append(
            [event(payload={"a": 1, "b": 2}), event(payload={"b": 2, "a": 1}), event(payload={})]
        ).records

        assert first.payload_hash == second.payload_hash != third.payload_hash

    def test_facts_may_hold_any_json(self, log: Log) -> None:
        """A3: in the facts profile a payload is any JSON value."""
        values = [[1, 2], "text", 7, 1.5, True, None, {}]
        log.append_draft(
            log.draft(FACTS_PROFILE, [event("fact", payload=value) for value in values])
        )

        assert [record.payload for record in log.read()] == values

    def test_ids_are_never_altered(self, log: Log) -> None:
        """A4: ids differ by case, separators and width, and keep inner white space."""
        ids = [
            "Foo",
            "foo",
            "foo/",
            "fo:o",
            "ｆoo",
            "fo%3Ao",
            "a  b",
            "\u00e9",
            "e\u0301",
            "x" * 512,
        ]
        for number, name in enumerate(ids):
            log.append([event(stream=("s", name), event_id=name, n=number)])

        assert [stream_seqs(log, ("s", name)) for name in ids] == [[1]] * len(ids)
        assert [log.event(name).payload for name in ids] == [{"n": n} for n in range(len(ids))]
        assert [one.stream_id for one in log.streams()] == ids

    def test_stream_types_and_ids_are_separate(self, log: Log) -> None:
        """A4: different pairs of type and id are different streams, with any separators."""
        pairs = [("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c"), ("a/b", "c"), ("a", "b/c")]
        for pair in pairs:
            log.append([event(stream=pair)])

        assert [stream_seqs(log, pair) for pair in pairs] == [[1]] * len(pairs)

    def test_occurred_at_is_kept_byte_for_byte(self, log: Log) -> None:
        """A1: a given time keeps its zone, its digits and its lower-case letters."""
        times = ["2024-05-01T12:00:00.123456789+02:00", "2024-05-01t10:00:00z"]
        log.append([event(occurred_at=text) for text in times])

        assert [record.occurred_at for record in log.read()] == times

    def test_the_same_id_in_another_form_is_another_id(self, log: Log) -> None:
        """A4: ids are case-sensitive, UUIDs too."""
        low = "0190b5e2-0000-7000-8000-00000000abcd"
        log.append([event(event_id=low), event(event_id=low.upper())])

        assert positions(list(log.read())) == [1, 2]
        assert log.event(low.upper()).position == 2
