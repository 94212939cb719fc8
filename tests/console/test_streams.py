"""The page of a stream: its history and number, and its state event by event."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import seriatim
from seriatim import NewEvent, StreamKind
from seriatim.cli.app import app
from seriatim.cli.serve import _make_console
from seriatim.console import streams
from seriatim.console.app import ConsoleSettings
from seriatim.console.stepper import (
    FoldCheckpoint,
    Stepper,
    compare_states,
    find_key,
    flatten_state,
    to_event_record,
)
from seriatim.core.builtin_folds import aggregate_states, decision_graph
from seriatim.core.event import EventRecord
from seriatim.core.fold import Fold
from seriatim.core.projection import Projection, Table, projection
from seriatim.guards import PatternGuard
from seriatim.wire.records import to_wire_record
from tests.console.test_events import append, link, rows, visit
from tests.fixtures.console import ConsoleService, run_console
from tests.unit.core.test_decision_graph import DEAL_DESK

STREAM = ("order", "7")
CHANGED_TOTAL = re.compile(r">total</th>\s*<td>(?:<del>)?(\d*)[^\n]*\n\s*<td><ins>(\d+)")


class Total(msgspec.Struct):
    """The state of `totals`."""

    total: int = 0


@projection(
    "totals",
    key="stream",
    events=["order.*"],
    on_failure="park",
    columns={"total": int, "at": datetime, "lines": list, "note": str},
)
def totals(row: dict[str, Any] | None, event: EventRecord) -> dict[str, Any] | None:
    """Add amounts; `order.dropped` removes the row, and a negative amount fails."""
    if event.event_type == "order.dropped":
        return None
    amount = event.payload.get("amount", 0)
    if amount < 0:
        raise ValueError("negative")
    before = row or {"total": 0, "lines": []}
    return {
        "total": before["total"] + amount,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "lines": [*before["lines"], amount],
        "note": event.payload.get("note"),
    }


@projection(
    "lines",
    key="stream",
    tables=[Table("line", {"name": str}, {"amount": int})],
    state=Total,
)
def lines(state: Total | None, event: EventRecord) -> tuple[Total, dict[str, list[dict[str, Any]]]]:
    """Write a row for each event, beside a state."""
    amount = event.payload.get("amount", 0)
    row = {"name": event.event_type, "amount": amount}
    return Total((state or Total()).total + amount), {"line": [row]}


@projection("by_payload", key="payload.amount", columns={"n": int})
def by_payload(row: Any, event: EventRecord) -> Any:
    """Have a key that is not the stream."""
    return {"n": 1}


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleService]:
    """A service with a console that knows projections."""
    url = f"sqlite:///{tmp_path_factory.mktemp('streams') / 'log.db'}"
    with run_console(url, ConsoleSettings(projections=(totals, lines, by_payload))) as service:
        yield service


def order(kind: str, **payload: object) -> NewEvent:
    """Return an event of the stream."""
    return NewEvent(f"order.{kind}", payload, STREAM)


def test_the_page_has_the_history_and_the_next_number(console: ConsoleService) -> None:
    """N1, B5, B7: the page shows the history, the next number, and whether the stream is open."""
    console.service.log.declare(StreamKind(name="parcel", closing_types=("parcel.lost",)))
    positions = append(console, "history", *[order("placed", n=n) for n in range(60)])
    append(console, "history", NewEvent("parcel.lost", {}, ("parcel", "p")))
    reader = visit(console, tenant_id="history")

    first = reader.get("/console/stream", type="order", id="7")
    address = link(first, "next")
    assert address is not None
    assert rows(first) + rows(reader.get(address)) == positions
    newest = reader.get("/console/stream", type="order", id="7", order="newest")
    assert rows(newest) == positions[:-51:-1]
    assert '<div class="value">61</div><div class="label">expected next number' in first.text
    assert ">open<" in first.text
    assert ">closed<" in reader.get("/console/stream", type="parcel", id="p").text
    user = visit(console, tenant_id="history", rights=["read"], subject=None)
    assert ">unknown<" in user.get("/console/stream", type="parcel", id="p").text


def test_an_unknown_stream_is_not_found(console: ConsoleService) -> None:
    """N1, K2: an unknown stream and one of another tenant are not found."""
    append(console, "one", order("placed"))
    stranger = visit(console, tenant_id="two")
    assert stranger.get("/console/stream", type="order", id="7").status == 404
    assert visit(console, tenant_id="one").get("/console/stream", type="order").status == 400


def test_each_step_marks_the_changes_of_its_event(console: ConsoleService) -> None:
    """N1, I1: each step marks the difference that its event makes to the row."""
    append(console, "steps", order("placed", amount=5, note="<b>"), NewEvent("other", {}, STREAM))
    append(console, "steps", order("raised", amount=2**40), order("dropped"))
    reader = visit(console, tenant_id="steps")

    page = reader.get("/console/stream", type="order", id="7", projection="totals")
    steps = page.text.split('<section class="step"')[1:]

    assert len(steps) == 4
    assert "<ins>5</ins>" in steps[0]
    assert "<del>" not in steps[0]
    assert "&lt;b&gt;" in steps[0]
    assert "does not process this type" in steps[1]
    assert f"<del>5</del></td>\n          <td><ins>{5 + 2**40}</ins>" in steps[2]
    assert "<ins>" not in steps[3]
    assert f"<del>{5 + 2**40}</del>" in steps[3]
    assert "by_payload" in page.text.partition("Projections with another key")[2]
    both = reader.get("/console/stream", type="order", id="7", projection="lines")
    assert 'line["order.placed"].amount' in unescape(both.text)


def test_a_failure_is_shown_at_its_event(console: ConsoleService) -> None:
    """N1, I7: the event that fails is marked, and its key is parked for later ones."""
    append(console, "failing", order("placed", amount=1), order("raised", amount=-1))
    append(console, "failing", order("raised", amount=1))
    page = visit(console, tenant_id="failing").get(
        "/console/stream", type="order", id="7", projection="totals"
    )

    steps = page.text.split('<section class="step"')[1:]
    assert ["failed:" in step for step in steps] == [False, True, False]
    assert "<ins>" not in steps[1] + steps[2]
    assert "later events are not applied" in page.text


def test_steps_are_paged_and_bounded(
    console: ConsoleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1, N5: a page of steps is a link, and a bounded number of events is folded."""
    append(console, "long", *[order("raised", amount=1) for _ in range(35)])
    reader = visit(console, tenant_id="long")

    totals_found: list[tuple[str, str]] = []
    address: str | None = "/console/stream?type=order&id=7&projection=totals"
    while address:
        page = reader.get(address)
        totals_found += CHANGED_TOTAL.findall(page.text)
        steps = page.text.partition('aria-label="Steps"')[2].partition("</nav>")[0]
        match = re.search(r'<a rel="next" href="([^"]*)"', steps)
        address = None if match is None else unescape(match[1])
    assert totals_found == [(str(n or ""), str(n + 1)) for n in range(35)]

    monkeypatch.setattr(streams, "STEPS_MAX", 20)
    last = reader.get("/console/stream?type=order&id=7&projection=totals&step=10")
    assert "The first 20 events can be displayed" in last.text


def test_a_decision_trace_is_stepped_through(console: ConsoleService) -> None:
    """N1, T3: the shipped projection of traces can be stepped through."""
    log = console.service.view("deals")
    for envelope in DEAL_DESK["events"]:
        log.traces.append_event(envelope)
    trace_id = DEAL_DESK["events"][0]["trace_id"]
    page = visit(console, tenant_id="deals").get(
        "/console/stream", type="trace", id=trace_id, projection="decision_graph"
    )

    assert page.status == 200
    assert "state.workflow" in page.text
    assert ">closed<" in page.text


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
AMOUNTS = st.integers(-1, 3) | st.integers(2**60, 2**62)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["order.raised", "order.dropped", "other"]),
        st.dictionaries(st.sampled_from(["amount"]), AMOUNTS)
        | st.dictionaries(TEXTS, TEXTS | st.floats(-1e9, 1e9)),
    ),
    max_size=12,
)


@given(events=EVENTS, first=st.integers(0, 12), count=st.integers(1, 12))
@pytest.mark.parametrize(
    "declared", [totals, lines, aggregate_states], ids=lambda declared: declared.name
)
def test_the_last_state_is_that_of_the_fold(
    declared: Projection, events: list[tuple[str, dict[str, Any]]], first: int, count: int
) -> None:
    """N1, I1: the stepper folds events as the pipeline does, for any range of displayed steps."""
    key = find_key(declared, STREAM)
    assert key is not None
    # Without rules: generated keys such as PWD look like those of credentials.
    with closing(seriatim.open("memory:", guard=PatternGuard("none", []))) as log:
        for event_type, payload in events:
            log.append([NewEvent(event_type, payload, STREAM)])
        records = list(log.read())
    expected = Fold(declared)
    for record in records:
        if declared.events == ("*",) or record.event_type.startswith("order."):
            expected.add(declared.extract_key(record) or "", record)

    stepper = Stepper(declared, "default", key, first=first, count=count)
    wire = [msgspec.json.decode(msgspec.json.encode(to_wire_record(record))) for record in records]
    stepper.run(map(to_event_record, wire))

    assert list(map(to_event_record, wire)) == records
    assert stepper.fold.states == expected.states
    assert stepper.fold.rows == expected.rows
    assert stepper.fold.failures == expected.failures
    assert len(stepper.steps) == max(0, min(count, len(events) - first))
    assert continue_at_each_event(declared, key, records, first, count) == stepper.steps
    for before, after in zip(stepper.steps, stepper.steps[1:], strict=False):
        state = {change.name: change.after for change in before.changes if change.after is not None}
        assert state == {
            change.name: change.before for change in after.changes if change.before is not None
        }


def test_fields_with_odd_names_are_distinct() -> None:
    """N1: a nested field and one whose name contains a dot have different paths."""
    before, after = ({"a": {"b": 1}}, {"a": {"b": 1}, "a.b": 2})
    changes = compare_states(flatten_state(before), flatten_state(after))
    assert [(change.name, change.before, change.after) for change in changes] == [
        ("a.b", "1", "1"),
        ('["a.b"]', None, "2"),
    ]


def continue_at_each_event(
    declared: Projection, key: str, records: list[EventRecord], first: int, count: int
) -> list[Any]:
    """Fold each event with a new stepper that continues at a checkpoint; return all steps."""
    steps, start = [], None
    for record in records:
        stepper = Stepper(declared, "default", key, first=first, count=count, start=start)
        stepper.run([record])
        steps += stepper.steps
        start = stepper.save(record)
    return steps


def read_totals(reader: Any, step: int) -> list[tuple[str, str]]:
    """Return the totals before and after each step of a page."""
    page = reader.get("/console/stream", type="order", id="7", projection="totals", step=step)
    found: list[tuple[str, str]] = CHANGED_TOTAL.findall(page.text)
    return found


def test_steps_continue_at_checkpoints(
    console: ConsoleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1: a page folds only the events after the last checkpoint, in whatever order pages load."""
    monkeypatch.setattr(streams, "READ_EVENTS", 20)
    append(console, "kept", *[order("raised", amount=1) for _ in range(70)])
    reader = visit(console, tenant_id="kept")
    folded: list[int] = []
    run = Stepper.run

    def count_run(self: Stepper, events: list[EventRecord]) -> None:
        folded.append(len(events))
        run(self, events)

    monkeypatch.setattr(Stepper, "run", count_run)
    for step, most in ((50, 60), (50, 10), (60, 10), (40, 10), (45, 15), (7, 20), (0, 10)):
        folded.clear()
        assert read_totals(reader, step) == [
            (str(n or ""), str(n + 1)) for n in range(step, step + 10)
        ]
        assert sum(folded) <= most, step


def test_a_checkpoint_of_another_history_is_not_used(
    console: ConsoleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F8, N1: after a restore, the fold does not continue at a checkpoint of another history."""
    append(console, "stale", *[order("raised", amount=1) for _ in range(25)])
    reader = visit(console, tenant_id="stale")
    keep = streams.StepReader._keep

    def keep_another(self: streams.StepReader, checkpoints: list[FoldCheckpoint]) -> None:
        fold = Fold(totals)
        keep(
            self,
            [
                msgspec.structs.replace(checkpoint, event_id="lost", fold=fold)
                for checkpoint in checkpoints
            ],
        )

    monkeypatch.setattr(streams.StepReader, "_keep", keep_another)
    expected = [(str(n), str(n + 1)) for n in range(10, 20)]
    assert read_totals(reader, 10) == expected
    monkeypatch.setattr(streams.StepReader, "_keep", keep)
    assert read_totals(reader, 10) == expected


def test_a_token_for_some_types_never_continues_a_fold_of_all(console: ConsoleService) -> None:
    """K2: a restricted token folds only the events that it may read."""
    events = [order("raised", amount=1) for _ in range(12)]
    append(console, "some", *events, order("hidden", amount=5), *events)
    assert read_totals(visit(console, tenant_id="some"), 15)[0] == ("19", "20")
    restricted = visit(console, tenant_id="some", rights=["read"], types=["order.raised"])
    assert read_totals(restricted, 15)[0] == ("15", "16")


def test_only_keys_that_are_streams_are_folded_from_a_stream() -> None:
    """I1: only a projection whose key is exactly the stream is folded from one stream."""
    assert find_key(totals, ("a:b", "c")) == "a%3Ab:c"
    assert find_key(decision_graph, ("trace", "t")) == "t"
    assert find_key(decision_graph, STREAM) is None
    assert find_key(by_payload, STREAM) is None
    assert find_key(msgspec.structs.replace(totals, key="stream_id"), STREAM) is None
    assert find_key(msgspec.structs.replace(totals, stream_types=("seat",)), STREAM) is None


def test_the_command_passes_on_its_projections() -> None:
    """N1: `serve --projection` gives the console of each process the declared projection."""
    name = "tests.console.test_streams:totals"
    sent = pickle.dumps(partial(_make_console, (name,)))
    console = pickle.loads(sent)()  # noqa: S301 - made here
    assert [declared.name for declared in console._settings.projections] == ["totals"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["no.such.module:x"], "cannot be imported"),
        (["tests.console.test_streams:STREAM"], "is not a projection"),
        (["aggregate_states"], "two projections have the name aggregate_states"),
    ],
)
def test_projections_that_cannot_be_loaded_are_refused(
    tmp_path: Path, names: list[str], message: str
) -> None:
    """N1: the command refuses to start, and names the reason."""
    options = [part for name in names for part in ("--projection", name)]
    result = CliRunner().invoke(app, ["serve", "--url", f"sqlite:///{tmp_path}/log.db", *options])
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
