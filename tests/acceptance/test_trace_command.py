"""The command trace show: one decision trace in the terminal."""

import json
from pathlib import Path

import seriatim
from tests.acceptance.cli_program import Program

DEAL_DESK = json.loads((Path(__file__).parents[1] / "vectors" / "deal_desk.json").read_text())
TRACE_ID = DEAL_DESK["events"][0]["trace_id"]


def fill(program: Program, hostile: str | None = None) -> None:
    """Append the shipped trace, with another title if one is given."""
    with seriatim.open(program.env["SERIATIM_URL"]) as log:
        for number, envelope in enumerate(DEAL_DESK["events"]):
            payload = envelope["payload"]
            if number == 0 and hostile is not None:
                payload = payload | {"title": hostile}
            log.traces.append_event(envelope | {"payload": payload})


def test_a_trace_is_printed_as_tree_and_timeline(program: Program) -> None:
    """T3: the tree names actors and policies, and the timeline lists every event."""
    fill(program)

    result = program("trace", "show", TRACE_ID)

    assert result.code == 0
    assert "└── decided by actor person:deal_desk_lead_456  approver" in result.out
    assert "├── evaluated policy baseline_discount:1.0  allow" in result.out
    for envelope in DEAL_DESK["events"]:
        assert envelope["event_type"] in result.out


def test_the_json_has_the_graph(sqlite: Program) -> None:
    """T3: the JSON report has the nodes and edges of the decision graph."""
    fill(sqlite)

    report = sqlite("trace", "show", TRACE_ID, "--json").json

    assert (len(report["nodes"]), len(report["edges"]), len(report["steps"])) == (10, 8, 9)
    assert report["summary"]["outcome"] == "success"


def test_missing_and_truncated_traces(sqlite: Program) -> None:
    """L1: an unknown trace is not found; a truncated one says that there are more events."""
    fill(sqlite)

    missing = sqlite("trace", "show", "none", "--json")
    other = sqlite("trace", "show", TRACE_ID, "--tenant", "acme", "--json")
    truncated = sqlite("trace", "show", TRACE_ID, "--limit", "3")

    assert (missing.code, missing.error["code"]) == (3, "not_found")
    assert other.error["code"] == "not_found"
    assert "more events" in truncated.err
    assert "TraceFinished" not in truncated.out


def test_control_characters_of_traces_are_escaped(sqlite: Program) -> None:
    """K1: control characters in a trace are escaped, and markup is printed as text."""
    fill(sqlite, "[red]\x9b31m\u202e")

    output = sqlite("trace", "show", TRACE_ID).out

    assert "[red]" in output
    assert not {"\x9b", "\u202e"} & set(output)
