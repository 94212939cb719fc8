"""Exports and imports: all events are stored once, also after interruptions."""

import json
import tracemalloc
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pytest

from seriatim.core.decide import StaleRules
from seriatim.core.errors import BackendFailure, Conflict, InvalidEvent, SchemaViolation
from seriatim.core.event import RECORD_COLUMNS, NewEvent
from seriatim.core.indexes import PayloadIndex
from seriatim.core.kinds import EventType, StreamKind
from seriatim.core.request import ExpectedSeq
from seriatim.factory import Log
from seriatim.log import importer
from seriatim.log.export_format import ExportTruncatedError, export_log
from seriatim.log.importer import ImportReport, import_events
from seriatim.store.memory import MemoryStore

NEW_PLACE = ("recorded_at",)


def new_log() -> Log:
    """Return an empty log in memory."""
    return Log(MemoryStore())


def full_log() -> Log:
    """Return a log with every kind of event: facts, traces, commands and user-defined kinds."""
    log = new_log()
    log.declare(
        StreamKind(name="case", first_seq=0, numbered_by="caller", expected_seq_required=True),
        EventType(event_type="noted", schema={"type": "object"}),
        PayloadIndex("noted", "n"),
    )
    log.append([NewEvent("noted", {"n": 10**30, "f": 1e16, "é": "\u2028"}, tags=("b", "a"))])
    log.append([NewEvent("opened", stream=("case", "1"), stream_seq=0)])
    log.append(
        [NewEvent("closed", {"x": -0.0}, stream=("case", "1"), stream_seq=1)],
        ExpectedSeq(("case", "1"), 0),
        "key",
    )
    log.facts.append([{"event_type": "counted", "payload": [1, None, "x"]}])
    for request in ("r-1", "r-2"):
        log.aggregates.append(
            [{"event_type": "Deployed", "payload": {}}, {"event_type": "Healthy", "payload": {}}],
            org_id="acme",
            aggregate_type="app",
            aggregate_id="web",
            actor_type="user",
            actor_id="dana",
            request_id=request,
            idempotency_key="shared",
        )
    log.append(
        [
            NewEvent(
                "noted", metadata={"k": "v"}, app_id="a", occurred_at="2025-01-01T00:00:00+02:00"
            )
        ]
    )
    return log


def export_lines(log: Log, **options: Any) -> list[bytes]:
    """Return the lines of an export."""
    parts: list[bytes] = []
    export_log(log.store, parts.append, **options)
    return b"".join(parts).splitlines(keepends=True)


def imported_fields(log: Log) -> list[dict[str, Any]]:
    """Return the fields of all records that an import preserves."""
    lines = [json.loads(line) for line in export_lines(log)[1:-1]]
    return [{name: line[name] for name in line if name not in NEW_PLACE} for line in lines]


def counts(report: ImportReport) -> tuple[int, int, int]:
    """Return the numbers of appended, reused and refused events."""
    return report.appended, report.reused, report.refused


def test_an_import_preserves_events() -> None:
    """C3: ids, keys, numbers, times, tags and append boundaries are imported unchanged."""
    source, target = full_log(), new_log()

    report = import_events(target, export_lines(source), declarations=True)

    assert report.ok, report.refusals
    assert counts(report) == (9, 0, 0)
    assert imported_fields(target) == imported_fields(source)
    assert target.store.rules().has_index(PayloadIndex("noted", "n"))
    assert target.store.rules().version == source.store.rules().version


def test_commands_and_keyed_events_share_a_tenant() -> None:
    """C1, C7: a command whose events share a key is imported beside events with their own keys."""
    source, target = new_log(), new_log()
    command = [{"event_type": "Deployed", "payload": {}}, {"event_type": "Healthy", "payload": {}}]
    for number, request in enumerate(("r-1", "r-2")):
        source.append([NewEvent("noted", {"n": number})], idempotency_key=f"k-{number}")
        source.aggregates.append(
            command,
            org_id="default",
            aggregate_type="app",
            aggregate_id="web",
            actor_type="user",
            actor_id="dana",
            request_id=request,
            idempotency_key="shared",
        )

    report = import_events(target, export_lines(source))

    assert counts(report) == (6, 0, 0), report.refusals
    assert imported_fields(target) == imported_fields(source)
    again = target.append([NewEvent("noted", {"n": 1})], idempotency_key="k-1")
    assert (again.replayed, again.first_position) == (True, 4)


def test_a_second_import_stores_nothing() -> None:
    """C3: a second import recognises stored events by their ids."""
    source, target = full_log(), new_log()
    lines = export_lines(source)
    import_events(target, lines, declarations=True)

    again = import_events(target, lines)

    assert counts(again) == (0, 9, 0)
    assert target.head() == source.head()


def test_an_interrupted_import_can_be_repeated() -> None:
    """B10: importing a part and then the whole file stores each event once."""
    source, target = full_log(), new_log()
    lines = export_lines(source)

    half = import_events(target, lines[:4], declarations=True)
    whole = import_events(target, lines)

    assert not half.complete
    assert not half.ok
    assert whole.ok
    assert imported_fields(target) == imported_fields(source)


def test_export_and_import_of_one_tenant() -> None:
    """K2: an export or import of one tenant contains no events of others."""
    source, out, into = full_log(), new_log(), new_log()

    taken = import_events(out, export_lines(source, tenant_id="acme"))
    narrowed = import_events(into, export_lines(source), tenant_id="acme")

    assert counts(taken) == counts(narrowed) == (4, 0, 0)
    assert narrowed.skipped == 5
    assert {line["tenant_id"] for line in imported_fields(out) + imported_fields(into)} == {"acme"}


@pytest.mark.parametrize("tenant_id", [None, "acme"])
def test_declarations_are_imported_on_request(tenant_id: str | None) -> None:
    """K2, A8: the declarations of a file are applied only on request."""
    source, target = new_log(), new_log()
    source.declare(StreamKind(name="order", closing_types=("placed",), catalogue="closed"))
    lines = export_lines(source)

    left = import_events(target, lines, tenant_id=tenant_id)
    target.append([NewEvent("placed", stream=("order", "1"))])
    target.append([NewEvent("shipped", stream=("order", "1"))])
    asked = import_events(target, lines, tenant_id=tenant_id, declarations=True)
    again = import_events(target, lines, tenant_id=tenant_id)

    assert (left.ok, left.undeclared) == (True, 1)
    assert (asked.undeclared, again.undeclared) == (0, 0)
    assert target.store.rules().kind_of("order").catalogue == "closed"
    with pytest.raises(SchemaViolation):
        target.append([NewEvent("placed", stream=("order", "2"))])


def one_append_lines(events: int, payload: bytes = b"{}") -> Iterator[bytes]:
    """Yield the lines of one large append between two single events."""
    yield b'{"event_type":"x","event_id":"before"}\n'
    for number in range(events):
        yield b'{"append_position":2,"event_type":"x","event_id":"e-%d","payload":%b}\n' % (
            number,
            payload,
        )
    yield b'{"event_type":"x","event_id":"after"}\n'


@pytest.mark.parametrize(
    ("events", "payload", "limit", "bound"),
    [
        (100_000, b"{}", "append_events", 10_000),
        (10_001, b"{}", "append_events", 10_000),
        (100, b'{"text":"%b"}' % (b"x" * 1_000_000), "append_bytes", 16 * 2**20),
    ],
)
def test_an_append_over_a_bound_is_refused_while_read(
    events: int, payload: bytes, limit: str, bound: int
) -> None:
    """K3: an append over a limit is refused while it is read, with its line, in bounded memory."""
    target = new_log()
    tracemalloc.start()
    report = import_events(target, one_append_lines(events, payload))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert counts(report) == (2, 0, events)
    assert report.reasons == {"limit_exceeded": events}
    [refusal] = report.refusals
    assert (refusal.line, refusal.events) == (2, events)
    assert limit in refusal.message
    assert "line 2" in refusal.message
    assert str(bound) in refusal.message
    assert peak < 64 * 2**20


@pytest.mark.parametrize(
    ("field", "named"),
    [
        (b'"tags":[%b]' % b",".join([b'"ab"'] * 300_000), "tags 64"),
        (b'"metadata":{%b}' % b",".join(b'"k%d":"v"' % n for n in range(200_000)), "metadata"),
        (b'"payload":{"a":[%b]}' % b",".join([b"12"] * 2_200_000), "payload_bytes"),
    ],
    ids=["tags", "metadata", "payload"],
)
@pytest.mark.parametrize("together", [True, False])
def test_a_line_over_a_bound_is_refused_while_read(
    field: bytes, named: str, *, together: bool
) -> None:
    """K3: a line over a limit is refused without decoding its values, in bounded memory."""
    start = b'"append_position":1,' if together else b""
    bad = (b'{%b"event_type":"x","event_id":"e-%d",%b}\n' % (start, n, field) for n in range(30))
    target = new_log()
    tracemalloc.start()
    report = import_events(target, chain(bad, [b'{"event_type":"x","event_id":"after"}\n']))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert counts(report) == (1, 0, 30)
    assert report.reasons == {"limit_exceeded": 30}
    assert named in report.refusals[0].message
    assert "line 1" in report.refusals[0].message
    assert peak < 48 * 2**20


def test_large_lines_within_the_limits_are_imported() -> None:
    """K3: a line that is longer than its event because of escapes is imported."""
    text = "\\u00e9" * 400_000
    tags = ",".join('"' + "\\u00e9" * 100 + f'{n}"' for n in range(64))
    line = f'{{"event_type":"x","event_id":"1","tags":[{tags}],"payload":{{"t":"{text}"}}}}\n'
    target = new_log()

    assert counts(import_events(target, [line.encode()])) == (1, 0, 0)


@pytest.mark.parametrize("header", [True, False], ids=["export", "made by hand"])
def test_incomplete_and_extended_files_are_reported(*, header: bool) -> None:
    """L2: a file with more or fewer events than stated is reported as not whole."""
    source = new_log()
    source.append([NewEvent("x", {}), NewEvent("y", {})])
    written: list[bytes] = []
    export_log(source.store, written.append)
    first, *events, end = b"".join(written).splitlines(keepends=True)
    start = [first] if header else []

    def damaged() -> Iterator[bytes]:
        yield from [*start, *events]
        raise ExportTruncatedError

    extra = b'{"event_type":"x","event_id":"extra"}\n'
    assert import_events(new_log(), [*start, *events, end]).complete
    assert not import_events(new_log(), [*start, *events, end, extra]).complete
    assert not import_events(new_log(), [*start, *events[1:], end]).complete
    report = import_events(new_log(), damaged())
    assert (report.appended, report.complete, report.ok) == (2, False, False)


def test_an_append_at_its_limit_is_imported() -> None:
    """K3: an append of 10,000 events is imported as one append."""
    target = new_log()
    report = import_events(target, one_append_lines(10_000))

    assert counts(report) == (10_002, 0, 0)
    assert {record.append_position for record in target.read(after=1, until=10_001)} == {2}


def test_refused_events_are_reported_and_skipped() -> None:
    """K1: events that an append would refuse are reported, and the others are imported."""
    secret = {"event_type": "x", "event_id": "1", "payload": {"password": "hunter2-longer"}}
    good = {"event_type": "x", "event_id": "2"}
    keyless = {"event_type": "x"}

    report = import_events(new_log(), encode_lines([secret, good, keyless]))

    assert counts(report) == (1, 0, 2)
    assert report.reasons == {"pii_policy_violation": 1, "invalid_event": 1}
    assert [each.line for each in report.refusals] == [1, 3]
    assert "hunter2" not in str(report)


def test_an_altered_payload_is_refused() -> None:
    """A2: a line whose payload does not match its hash is refused."""
    lines = [line.replace(b'"n":1', b'"n":7') for line in export_lines(simple_log())]

    report = import_events(new_log(), lines)

    assert counts(report) == (1, 0, 2)
    assert "hash" in report.refusals[0].message
    assert report.reasons == {"invalid_event": 1, "event_sequence_invalid": 1}


@pytest.mark.parametrize("shared", [0, 1, 2])
def test_diverged_streams_are_refused(shared: int) -> None:
    """B5: events of a stream that diverged in the target are refused."""
    source, target = simple_log(5), new_log()
    import_events(target, export_lines(source, until=shared))
    target.append([NewEvent("other", stream=("s", "a"))])

    report = import_events(target, export_lines(source))

    assert counts(report) == (0, shared, 5 - shared)
    assert [record.event_type for record in target.read()] == ["noted"] * shared + ["other"]


def test_incremental_exports() -> None:
    """E1: an export after a position is imported into a log with the events before it."""
    source, target = simple_log(3), new_log()
    import_events(target, export_lines(source))
    source.append([NewEvent("noted", {"n": 3}, stream=("s", "a"))])

    report = import_events(target, export_lines(source, after=3))

    assert counts(report) == (1, 0, 0)
    assert imported_fields(target) == imported_fields(source)


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b'{"event_type": 7}\n',
        b'{"event_type": "x", "event_id": "1", "unknown": 1}\n',
        b'{"format":"other","version":1,"log_id":"x","epoch":1,"head":0}\n',
        b"\xff\xfe\n",
    ],
)
def test_an_invalid_line_ends_the_import(line: bytes) -> None:
    """B2: an invalid line ends the import with an error that names it."""
    with pytest.raises(InvalidEvent, match=r"line 1|the file has the format"):
        import_events(new_log(), [line])


def test_repeated_keys_are_refused_without_a_hash() -> None:
    """A2: a line without a hash is parsed strictly: a repeated key is refused."""
    line = b'{"event_type":"x","event_id":"1","payload":{"a":1,"a":2}}\n'

    assert counts(import_events(new_log(), [line])) == (0, 0, 1)


def test_conflicting_declarations_end_the_import() -> None:
    """A8: a declaration that conflicts with the target ends the import before any event."""
    target = new_log()
    target.declare(StreamKind(name="case"))

    with pytest.raises(Conflict):
        import_events(target, export_lines(full_log()), declarations=True)

    assert target.head() == 0


def test_declarations_may_change_during_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """A8: events are validated again when declarations change during an import."""
    source, target = simple_log(20), new_log()
    original = target.store.append
    answers = iter([True])

    def append(group: Any) -> Any:
        if next(answers, False):
            target.store.declare(StreamKind(name="late"))
            return [StaleRules()] * len(group)
        return original(group)

    monkeypatch.setattr(target.store, "append", append)

    report = import_events(target, export_lines(source))

    assert report.ok
    assert imported_fields(target) == imported_fields(source)


def test_a_failing_store_ends_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """L2: a backend failure ends the import with the error."""
    target = new_log()

    def append(_group: Any) -> Any:
        raise BackendFailure

    monkeypatch.setattr(target.store, "append", append)

    with pytest.raises(BackendFailure):
        import_events(target, export_lines(simple_log()))


def test_events_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """K3: an import has a bounded number of events in flight."""
    monkeypatch.setattr(importer, "PREPARED_EVENTS", 3)
    monkeypatch.setattr(importer, "GROUP_EVENTS", 4)
    monkeypatch.setattr(importer, "IN_FLIGHT_MAX", 2)
    source, target = simple_log(50), new_log()
    groups: list[int] = []
    ahead: list[int] = []
    original = target.store.append

    def append(group: Any) -> Any:
        groups.append(sum(len(request.events) for request in group))
        return original(group)

    def progress(_events: int) -> None:
        ahead.append(len(ahead) + 1 - sum(groups))

    monkeypatch.setattr(target.store, "append", append)

    assert import_events(target, export_lines(source), progress=progress).ok
    assert max(groups) == 4
    assert max(ahead) <= 4 * 3 + 3  # in flight, in the next group, and not validated yet


def test_appends_beside_a_refused_one_are_imported() -> None:
    """K1: of appends that are validated together, only those that the guard rejects are refused."""
    source, target = new_log(), new_log()
    for number in range(20):
        source.append([NewEvent("a", {"n": number}, event_id=f"e-{number}")])
    lines = export_lines(source)
    secret = "AKIA" + "A" * 16
    lines[5] = lines[5].replace(b"e-4", secret.encode())

    report = import_events(target, lines)

    assert (report.appended, report.refused) == (19, 1)
    assert [refusal.code for refusal in report.refusals] == ["pii_policy_violation"]
    assert [refusal.line for refusal in report.refusals] == [6]


def test_events_before_an_invalid_line_are_imported() -> None:
    """B2: events before an invalid line are imported."""
    source, target = simple_log(3), new_log()
    lines = export_lines(source)
    lines[3] = b"torn\n"

    with pytest.raises(InvalidEvent, match="line 4"):
        import_events(target, lines)

    assert target.head() == 1  # the second append may have continued in that line


def test_divergence_is_found_with_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """B5, K3: divergence of streams that are no longer tracked in memory is found."""
    monkeypatch.setattr(importer, "TRACKED_STREAMS_MAX", 1)
    source, target = new_log(), new_log()
    for number in range(6):
        source.append([NewEvent("noted", {"n": number}, stream=("s", "ab"[number % 2]))])
    import_events(target, export_lines(source, until=2))
    target.append([NewEvent("other", stream=("s", "a"))])

    report = import_events(target, export_lines(source))

    assert counts(report) == (2, 2, 2)
    last = target.last_event(("s", "b"))
    assert last is not None
    assert last.stream_seq == 3


def simple_log(count: int = 3) -> Log:
    """Return a log with one stream."""
    log = new_log()
    for number in range(count):
        log.append([NewEvent("noted", {"n": number}, stream=("s", "a"))])
    return log


def encode_lines(events: Iterable[dict[str, Any]]) -> list[bytes]:
    """Return the lines of events."""
    return [json.dumps(event).encode() + b"\n" for event in events]


def test_an_export_has_every_field_of_a_record() -> None:
    """A1: a line of an export has every field of a record."""
    line = json.loads(export_lines(simple_log())[1])

    assert tuple(line) == RECORD_COLUMNS
