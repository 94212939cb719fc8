"""Verification accepts an intact log and reports damage."""

from collections.abc import Callable

import msgspec
import pytest

from seriatim.core.event import EventRecord, NewEvent
from seriatim.core.kinds import StreamKind
from seriatim.log import verification
from seriatim.log.base import BaseLog
from seriatim.log.verification import REPORTED_PROBLEMS_MAX, VerificationReport, verify
from seriatim.store.memory import MemoryStore
from seriatim.store.port import ReadSpec

Damage = Callable[[list[EventRecord]], None]


def make_log() -> tuple[BaseLog, MemoryStore]:
    """Return a log of two tenants with three streams, facts and batches."""
    store = MemoryStore()
    log = BaseLog(store)
    log.append([NewEvent("opened", {"n": 1}, stream=("account", "a"), tags=("vip",))])
    log.append([NewEvent("noted", {"n": n}) for n in range(3)])
    log.append([NewEvent("paid", {"n": 2.5}, stream=("account", "a")), NewEvent("noted")])
    log.for_tenant("other").append([NewEvent("opened", stream=("account", "a"))])
    log.append([NewEvent("opened", {"é": "ü"}, stream=("account", "b"))], idempotency_key="k")
    return log, store


def errors_of(report: VerificationReport) -> dict[str, list[str]]:
    """Return the messages of errors, by check."""
    found: dict[str, list[str]] = {}
    for finding in report.findings:
        if finding.level == "error":
            found.setdefault(finding.check, []).append(finding.message)
    return found


def test_an_intact_log_passes_every_check() -> None:
    """F2: verification of an intact log has no errors or warnings."""
    _, store = make_log()

    report = verify(store, lookups=None)

    assert report.ok
    assert (report.events, report.appends, report.head) == (8, 5, 8)
    assert {finding.level for finding in report.findings} == {"ok"}


def test_an_empty_log_passes_every_check() -> None:
    """Verification of an empty log succeeds."""
    assert verify(MemoryStore()).ok


def test_progress_ends_at_the_head() -> None:
    """Progress is reported as positions out of the head."""
    _, store = make_log()
    reported: list[tuple[int, int]] = []

    verify(store, progress=lambda done, head: reported.append((done, head)))

    assert reported[-1] == (8, 8)


def change_record(index: int, **fields: object) -> Damage:
    """Return damage that changes fields of one record."""

    def damage(records: list[EventRecord]) -> None:
        records[index] = msgspec.structs.replace(records[index], **fields)

    return damage


@pytest.mark.parametrize(
    ("damage", "check", "message"),
    [
        (change_record(2, position=7), "positions", "position 7 where 3 was expected"),
        (change_record(3, append_position=1), "appends", "has the append position 1"),
        (change_record(3, tenant_id="other"), "appends", "another tenant than"),
        (change_record(0, payload_json='{"n":2}'), "payloads", "does not match its hash"),
        (change_record(0, payload_json='{"n": 1}'), "payloads", "not canonical"),
        (change_record(0, payload_json="{"), "payloads", "not JSON"),
        (change_record(0, event_id=" x"), "envelopes", "event_id"),
        (change_record(0, stream_seq=None), "envelopes", "stream_seq is missing"),
        (change_record(7, idempotency_key="k" * 201), "envelopes", "idempotency_key"),
        (change_record(0, event_version=0), "envelopes", "event_version"),
        (change_record(0, occurred_at="yesterday"), "envelopes", "occurred_at"),
        (change_record(0, recorded_at="2025-01-01T00:00:00Z"), "envelopes", "recorded_at"),
        (change_record(4, stream_seq=3), "streams", "has number 3 after 1"),
        (change_record(7, stream_seq=5), "streams", "begins with number 5"),
        (change_record(5, event_id="swapped"), "look-ups", "not found by its event id"),
    ],
)
def test_damage_is_reported_by_its_check(damage: Damage, check: str, message: str) -> None:
    """B3: each kind of damage is an error of the right check."""
    _, store = make_log()
    damage(store._records)

    report = verify(store, lookups=None)

    assert not report.ok
    assert any(message in text for text in errors_of(report)[check])


class Lossy(MemoryStore):
    """A store that has lost a row."""

    def read(self, spec: ReadSpec) -> list[EventRecord]:
        """Read everything but the fourth event."""
        found = super().read(msgspec.structs.replace(spec, limit=spec.limit + 1))
        return [record for record in found if record.position != 4][: spec.limit]


def test_a_lost_row_is_a_gap_and_a_wrong_count() -> None:
    """B3: a lost row is reported as a gap and as a wrong number of events."""
    store = Lossy()
    BaseLog(store).append([NewEvent("noted", {"n": n}) for n in range(6)])

    messages = errors_of(verify(store))["positions"]

    assert messages == [
        "position 5 where 4 was expected",
        "the head is 6, but 5 events were read",
    ]


def test_an_index_without_a_record_is_found() -> None:
    """F7: records that are missing in an index are reported by lookups."""
    _, store = make_log()
    store._ids.clear()
    store._streams.clear()

    messages = errors_of(verify(store, lookups=None))["look-ups"]

    assert any("event id" in each for each in messages)
    assert any("stream" in each for each in messages)


def test_reported_problems_are_bounded() -> None:
    """The report lists a bounded number of problems and counts the others."""
    store = MemoryStore()
    BaseLog(store).append([NewEvent("noted", {"n": n}) for n in range(100)])
    store._records[:] = [
        msgspec.structs.replace(record, payload_json="[]") for record in store._records
    ]

    messages = errors_of(verify(store, lookups=1))["payloads"]

    assert len(messages) == REPORTED_PROBLEMS_MAX + 1
    assert messages[-1] == f"and {100 - REPORTED_PROBLEMS_MAX} more of this kind"


def test_streams_are_tracked_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """B5: gaps in streams that are no longer tracked in memory are found."""
    monkeypatch.setattr(verification, "TRACKED_STREAMS_MAX", 2)
    store = MemoryStore()
    log = BaseLog(store)
    for number in range(4):
        for stream in "abcdef":
            log.append([NewEvent("noted", {"n": number}, stream=("s", stream))])

    assert verify(store, lookups=1).ok

    change_record(20, stream_seq=9)(store._records)

    assert "streams" in errors_of(verify(store, lookups=1))


def test_events_after_the_end_of_a_trace_are_errors() -> None:
    """B7: events after the closing event of a trace are errors."""
    store = MemoryStore()
    log = BaseLog(store)
    for number in range(2):
        log.append([NewEvent("noted", {"n": number}, stream=("s", "a"))])
    change_record(0, stream_type="trace", stream_seq=0, event_type="TraceFinished")(store._records)
    change_record(1, stream_type="trace", stream_seq=1, event_type="TraceStarted")(store._records)

    messages = errors_of(verify(store, lookups=1))["streams"]

    assert any("does not open with TraceStarted" in each for each in messages)
    assert any("continues after it was closed" in each for each in messages)
    assert any("opens a second time" in each for each in messages)


def test_rules_of_kinds_declared_later_are_warnings() -> None:
    """A8: events that break a kind declared after them are warnings."""
    store = MemoryStore()
    log = BaseLog(store)
    log.append([NewEvent("closed", stream=("case", "a")), NewEvent("noted", stream=("case", "a"))])
    log.declare(StreamKind(name="case", first_seq=0, closing_types=("closed",)))

    report = verify(store)

    assert report.ok
    assert [each.level for each in report.findings if each.check == "streams"] == ["warning"] * 2
