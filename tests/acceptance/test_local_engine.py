"""The commands of projections on the local engine: the same results without Spark and Java."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

import seriatim
from seriatim import NewEvent
from tests.acceptance.cli_program import Program
from tests.acceptance.test_extras import SPARK, run_without

DECLARED = """
import seriatim


@seriatim.projection("seats", key="stream_id", events=["seat.*"], columns={"taken": int})
def seats(state, event):
    if event.payload["seat"] == "13F":
        raise ValueError("there is no row 13")
    return {"taken": (state["taken"] if state else 0) + 1}


hours = seriatim.frame_projection(
    "hours", key={"hour": str}, columns={"events": int}, merge={"events": "sum"}
)(lambda events: events)
"""
LOCAL = "--engine=local"


@pytest.fixture
def shop(program: Program) -> Program:
    """The program in a folder with declarations, on a log with four seats of two shows."""
    Path(program.folder, "shop.py").write_text(DECLARED)
    with seriatim.open(program.env["SERIATIM_URL"]) as log:
        for number, seat in enumerate(["1A", "1B", "13F", "1C"]):
            append(log, seat, f"s-{number % 2}")
    return program


def append(log: seriatim.Log, seat: str, show: str = "s-0") -> None:
    """Reserve a seat."""
    log.append([NewEvent("seat.reserved", {"seat": seat}, stream=("show", show))])


def test_lifecycle_without_spark(shop: Program) -> None:
    """I1, I3, I4, I7, I10: run, a failure skipped, verify and rebuild, with no Spark installed."""

    def run(*args: str) -> tuple[int, str]:
        return run_without(shop, SPARK, "project", *args)

    code, output = run("run", "shop:seats", LOCAL)
    assert code == 1
    assert "there is no row 13" in output
    assert "Traceback" not in output
    assert shop("project", "skip", "seats", "3").code == 0
    assert run("run", "shop:seats", LOCAL)[0] == 0
    assert run("verify", "shop:seats", LOCAL)[0] == 0
    assert run("rebuild", "shop:seats", LOCAL, "--reason", "a test")[0] == 0

    [status] = shop("project", "status", "--json").json
    assert (status["projection"], status["status"]) == ("seats", "ready")
    # N4: skip and rebuild are events of the operators' journal, the rebuild after its switch.
    assert status["position"] == 5
    with seriatim.open(shop.env["SERIATIM_URL"]) as log:
        assert log.head() == 6


def test_a_shipped_fold_runs_without_spark(shop: Program) -> None:
    """I10: a shipped fold needs no Spark; a shipped DataFrame projection names both ways on."""
    assert run_without(shop, SPARK, "project", "run", "aggregate_states", LOCAL)[0] == 0

    code, output = run_without(shop, SPARK, "project", "run", "aggregate_states")
    assert code == 4
    assert "pip install 'seriatim[spark]'" in output
    assert "--engine local" in output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "shop:hours", LOCAL], "only Spark runs"),
        (["run", "shop:seats", LOCAL, "--master=local[1]"], "master is an option of Spark"),
        (["run", "shop:seats", LOCAL, "--checkpoint=x"], "checkpoint is an option of Spark"),
        (["verify", "shop:seats", LOCAL, "--archive=x"], "archive is an option of Spark"),
        (["run", "shop:seats", "--engine=other"], "'local', 'spark'"),
    ],
)
def test_options_of_the_other_engine_are_refused(
    sqlite: Program, args: list[str], words: str
) -> None:
    """L1: an option that the engine lacks is refused with its name, and nothing runs."""
    Path(sqlite.folder, "shop.py").write_text(DECLARED)
    refused = sqlite("project", *args)

    assert refused.code == 2, refused.err
    assert words in refused.err
    assert sqlite("project", "status", "--json").json == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_live_run(sqlite: Program, number: signal.Signals) -> None:
    """I7: a live run follows appends, and ends soon after a signal, without a traceback."""
    Path(sqlite.folder, "shop.py").write_text(DECLARED)
    following = sqlite.start("project", "run", "shop:seats", LOCAL, "--live")
    with seriatim.open(sqlite.env["SERIATIM_URL"]) as log:
        for seat in ("1A", "1B"):
            append(log, seat)
            wait_for(log)
    os.killpg(following.pid, number)
    _, output = following.communicate(timeout=60)

    assert following.returncode == 130
    assert b"Traceback" not in output


def wait_for(log: seriatim.Log) -> None:
    """Wait until the projection, which may not have started, has reached the log's head."""
    deadline = time.monotonic() + 60
    while True:
        with suppress(seriatim.SeriatimError):
            log.projections.wait_for("seats", log.head(), 1.0)
            return
        assert time.monotonic() < deadline, "the projection does not follow"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_java")
def test_engines_take_turns(shop: Program) -> None:
    """I10: a projection that moves from one engine to the other has the digest of both."""
    shop("project", "run", "shop:seats", LOCAL)
    shop("project", "skip", "seats", "3")
    local = shop("project", "run", "shop:seats", LOCAL, "--json").json
    with seriatim.open(shop.env["SERIATIM_URL"]) as log:
        append(log, "2A")
    on_spark = shop("project", "run", "shop:seats", "--json").json
    with seriatim.open(shop.env["SERIATIM_URL"]) as log:
        append(log, "2B")
    moved_back = shop("project", "run", "shop:seats", LOCAL, "--json").json
    proofs = [
        shop("project", "verify", "shop:seats", "--json", *engine).json for engine in ([], [LOCAL])
    ]

    assert [run[0]["position"] for run in (local, on_spark, moved_back)] == [5, 6, 7]
    assert [proof["equal"] for proof in proofs] == [True, True]
    assert proofs[0]["digest"] == proofs[1]["digest"]
