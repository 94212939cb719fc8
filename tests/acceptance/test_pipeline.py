"""The commands on Spark: projections, archive, audit and lake."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

import seriatim
from seriatim import NewEvent
from tests.acceptance.cli_program import Program

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_java")]

DECLARED = """
import seriatim


@seriatim.projection("seats", key="stream_id", events=["seat.*"], columns={"taken": int})
def seats(state, event):
    if event.payload["seat"] == "13F":
        raise ValueError("there is no row 13")
    return {"taken": (state["taken"] if state else 0) + 1}
"""


def fill(program: Program, seats: list[str]) -> None:
    """Reserve seats of two shows."""
    with seriatim.open(program.env["SERIATIM_URL"]) as log:
        for number, seat in enumerate(seats):
            stream = ("show", f"s-{number % 2}")
            log.append([NewEvent("seat.reserved", {"seat": seat}, stream=stream)])


def test_projection_lifecycle(sqlite: Program) -> None:
    """I1, I3, I7: run, status, a failure reported and skipped, and verify, without traceback."""
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
    # N4: position 5 is the record of the skip in the journal of operators.
    assert (ran.code, ran.json[0]["position"], ran.json[0]["lag"]) == (0, 5, 0)
    assert "seats" in status
    assert (verified.code, verified.json["equal"], verified.json["rows"]) == (0, True, 2)


def test_archive_audit_and_lake(sqlite: Program) -> None:
    """J1: commands archive, verify, restore, audit and export a log with one digest."""
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
    ("command", "words"),
    [
        (("project", "run", "nowhere:seats"), "cannot be imported"),
        (("project", "run", "seats"), "is not a shipped projection"),
        (("project", "status", "--failures", "seats"), "there are no projections at"),
        (("project", "pause", "seats"), "there are no projections at"),
        (("project", "status", "--target", "ftp://x"), "the read model must be in a database"),
        (("archive",), "is required: a folder or s3://bucket/prefix for the segments"),
        (("lake", "iceberg", "a.b", "--catalog", "uri"), "must be given as KEY=VALUE"),
    ],
)
def test_invalid_commands_are_reported(
    sqlite: Program, command: tuple[str, ...], words: str
) -> None:
    """Invalid input is reported in one line."""
    ran = sqlite(*command)
    assert ran.code in (2, 3)
    assert words in ran.err.replace("\n", " ")
    assert "Traceback" not in ran.err


FRAMES = """
import seriatim


def price(batches):
    raise ValueError("hats have no price")
    yield


@seriatim.frame_projection(
    "prices", key={"name": str}, columns={"price": int}, merge={"price": "sum"}
)
def prices(given):
    return given.mapInArrow(price, "name string, price bigint")
"""


def test_an_error_inside_a_task_is_one_line(sqlite: Program) -> None:
    """L2: an error raised by a user's function in a task is reported in one line."""
    Path(sqlite.folder, "shop.py").write_text(FRAMES)
    fill(sqlite, ["1A"])
    failed = sqlite("project", "run", "shop:prices")

    assert failed.code != 0
    assert "ValueError: hats have no price" in failed.err
    assert len(failed.err.strip().splitlines()) == 1, failed.err


def wait_for(log: seriatim.Log, name: str) -> None:
    """Wait until a projection, which may not have started, has reached the log's head."""
    deadline = time.monotonic() + 200
    while True:
        with suppress(seriatim.SeriatimError):
            log.projections.wait_for(name, log.head(), 1.0)
            return
        assert time.monotonic() < deadline, "the projection does not follow"
        time.sleep(0.2)


def test_ctrl_c_ends_a_job_on_spark_quietly(sqlite: Program) -> None:
    """I7: Ctrl-C ends a live projection with code 130 and without a stack trace.

    As in a terminal, every process of the foreground group gets the signal.
    """
    Path(sqlite.folder, "shop.py").write_text(DECLARED)
    fill(sqlite, ["1A"])
    following = sqlite.start("project", "run", "shop:seats", "--live")
    with seriatim.open(sqlite.env["SERIATIM_URL"]) as log:
        for seat in ("1B", "1C"):
            log.append([NewEvent("seat.reserved", {"seat": seat}, stream=("show", "1"))])
            wait_for(log, "seats")
    os.killpg(following.pid, signal.SIGINT)
    check_quiet(following)


def test_ctrl_c_while_spark_starts_ends_its_jvm(sqlite: Program) -> None:
    """I7: Ctrl-C while Spark starts ends the command and its JVM, without a stack trace."""
    Path(sqlite.folder, "shop.py").write_text(DECLARED)
    starting = sqlite.start("project", "run", "shop:seats")
    deadline = time.monotonic() + 200
    while not list(
        Path(sqlite.folder).glob("seriatim-java-*")
    ):  # created right before the JVM starts
        assert time.monotonic() < deadline, "Spark does not start"
        assert starting.poll() is None
        time.sleep(0.05)
    os.killpg(starting.pid, signal.SIGINT)
    check_quiet(starting)


def check_quiet(interrupted: subprocess.Popen[bytes]) -> None:
    """Wait for a command that got Ctrl-C, and for all processes that it started."""
    _, output = interrupted.communicate(timeout=120)  # the JVM writes to the same streams
    assert interrupted.returncode == 130
    for trace in (b"Traceback", b"Exception", b"KeyboardInterrupt", b"\tat ", b"java"):
        assert trace not in output, output
