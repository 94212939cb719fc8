"""The commands on Spark, as a user types them: projections, archive, audit and lake."""

from pathlib import Path

import pytest

import seriatim
from seriatim import NewEvent
from tests.acceptance.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_java")]

DECLARED = """
import seriatim


@seriatim.projection("seats", key="stream_id", events=["seat.*"], columns={"taken": int})
def seats(state, event):
    if event.data["seat"] == "13F":
        raise ValueError("there is no row 13")
    return {"taken": (state["taken"] if state else 0) + 1}
"""


def fill(program: Program, seats: list[str]) -> None:
    """Reserve seats of two shows."""
    with seriatim.open(program.env["SERIATIM_URL"]) as log:
        for number, seat in enumerate(seats):
            stream = ("show", f"s-{number % 2}")
            log.append([NewEvent("seat.reserved", {"seat": seat}, stream=stream)])


def test_a_projection_from_its_declaration_to_its_proof(sqlite: Program) -> None:
    """I1, I3, I7: run, status, a failure told and passed over, verify; errors in plain words."""
    Path(sqlite.folder, "shop.py").write_text(DECLARED)
    fill(sqlite, ["1A", "1B", "13F", "1C"])
    stopped = sqlite("project", "run", "shop:seats")
    failed = sqlite("project", "status", "--failures", "seats", "--json").json
    skipped = sqlite("project", "skip", "seats", "3")
    ran = sqlite("project", "run", "shop:seats", "--json")
    status = sqlite("project", "status").out
    verified = sqlite("project", "verify", "shop:seats", "--json")

    assert stopped.code == 1
    assert "projection_failed" in stopped.err
    assert "position 3" in stopped.err
    assert "there is no row 13" in stopped.err
    assert "Traceback" not in stopped.err
    assert [(one["failure"]["position"], one["status"]) for one in failed] == [(3, "stopped")]
    assert skipped.code == 0
    assert (ran.code, ran.json[0]["position"], ran.json[0]["lag"]) == (0, 4, 0)
    assert "seats" in status
    assert (verified.code, verified.json["equal"], verified.json["rows"]) == (0, True, 2)


def test_archive_audit_and_lake(sqlite: Program) -> None:
    """J1: sealed, verified, restored into another log, audited and exported, by commands alone."""
    fill(sqlite, [f"{row}A" for row in range(20)])
    sealed = sqlite("archive", "--to", "sealed", "--segment-events", "10", "--json")
    checked = sqlite("archive", "verify", "sealed", "--json")
    restored = sqlite("archive", "restore", "sealed", "--url", "sqlite:///again.db", "--json")
    audited = sqlite("audit", "--archive", "sealed", "--json")
    exported = sqlite("lake", "delta", "table", "--json")

    assert (sealed.code, sealed.json["end"], sealed.json["events"]) == (0, 20, 20)
    assert (checked.code, checked.json["problems"]) == (0, [])
    assert (restored.code, restored.json["head"]) == (0, 20)
    assert (audited.code, audited.json["ok"], audited.json["events"]) == (0, True, 20)
    assert audited.json["digest"] == sealed.json["digest"] == restored.json["digest"]
    assert (exported.code, exported.json["position"]) == (0, 20)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("project", "run", "nowhere:seats"), "cannot be imported"),
        (("project", "run", "seats"), "none that is shipped"),
        (("project", "status", "--failures", "seats"), "no projection 'seats'"),
        (("project", "pause", "seats"), "no projection 'seats'"),
        (("project", "status", "--target", "ftp://x"), "the read model lives in a database"),
        (("archive",), "says where the segments go"),
        (("lake", "iceberg", "a.b", "--catalog", "uri"), "is written key=value"),
    ],
)
def test_wrong_commands_are_told(sqlite: Program, command: tuple[str, ...], said: str) -> None:
    """Bad input of any kind: one line that says what was wrong."""
    ran = sqlite(*command)
    assert ran.code in (2, 3)
    assert said in ran.err.replace("\n", " ")
    assert "Traceback" not in ran.err
