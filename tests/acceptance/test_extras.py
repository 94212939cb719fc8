"""Commands without a required extra, and reading commands with a mistyped path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.cli_program import TIMEOUT_S, Program

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
from seriatim.cli import main
main()
"""
SPARK = {"pyspark", "pyarrow", "adbc_driver_manager", "obstore"}


def run_without(program: Program, modules: set[str], *args: str) -> tuple[int, str]:
    """Run a command with modules missing; return its exit code and output."""
    ran = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(blocked=modules), *args],
        capture_output=True,
        cwd=program.folder,
        env=program.env,
        timeout=TIMEOUT_S,
        check=False,
    )
    return ran.returncode, ran.stdout.decode() + ran.stderr.decode()


@pytest.mark.parametrize(
    ("modules", "extra", "args"),
    [
        (SPARK, "spark", ("project", "run", "activity")),
        (SPARK, "spark", ("audit",)),
        ({"confluent_kafka"}, "kafka", ("publish", "--to", "kafka://127.0.0.1:1/topic")),
        ({"uvicorn", "httptools"}, "server", ("serve", "--port", "0")),
        ({"psycopg", "psycopg_pool"}, "postgres", ("read", "--url", "postgresql://h/x")),
        ({"psycopg", "psycopg_pool"}, "postgres", ("init", "--url", "postgresql://h/x")),
        ({"typer", "rich"}, "cli", ("read",)),
    ],
)
def test_a_missing_extra_is_named(
    sqlite: Program, modules: set[str], extra: str, args: tuple[str, ...]
) -> None:
    """L3: the command names the extra to install, without a traceback."""
    code, output = run_without(sqlite, modules, *args)

    assert code in (2, 4), output
    assert f"{extra}]" in output or f"{extra}," in output, output
    assert "pip install" in output
    assert "Traceback" not in output


def test_a_handler_without_spark(sqlite: Program) -> None:
    """I10: without Spark, `work` names both ways on, and the local engine needs nothing of it."""
    Path(sqlite.folder, "shop.py").write_text(
        "import seriatim\n"
        "quiet = seriatim.handler('quiet', effect='keyed')(lambda event, context: None)\n"
    )
    sqlite("append", "seat.reserved", "{}")
    code, output = run_without(sqlite, SPARK, "work", "shop:quiet")
    assert code == 4
    assert "pip install 'seriatim[spark]', or run it in this process with --engine local" in output
    code, output = run_without(sqlite, SPARK, "work", "shop:quiet", "--engine", "local", "--json")
    assert (code, '"done":1' in output.replace(" ", "")) == (0, True), output


@pytest.mark.parametrize(
    "args",
    [
        ("project", "status"),
        ("project", "pause", "x"),
        ("token", "list"),
        ("quota", "list"),
        ("registry", "status"),
        ("dlq", "list"),
        ("subscriptions",),
        ("doctor",),
    ],
)
def test_reading_creates_no_file(
    program_without_log: Program, tmp_path: Path, args: tuple[str, ...]
) -> None:
    """L3: a mistyped path is an error and creates no file."""
    ran = program_without_log(*args, "--url", "sqlite:///missing.db")

    assert ran.code in (3, 4), ran
    assert "Traceback" not in ran.err
    assert list(tmp_path.glob("missing*")) == []


def test_doctor_on_a_missing_log(program_without_log: Program) -> None:
    """F9: doctor on a missing log ends with exit code 4 and a remedy."""
    ran = program_without_log("doctor", "--url", "sqlite:///missing.db", "--json")

    assert ran.code == 4
    [finding] = ran.json["findings"]
    assert "seriatim init" in finding["cure"]


def test_piped_output_is_not_wrapped(sqlite: Program) -> None:
    """A4: output into a pipe is never wrapped or cut, with any COLUMNS."""
    stream = "s-" + "0123456789" * 12
    sqlite.env["COLUMNS"] = "40"
    payload = '{"text":"' + "x" * 300 + '"}'
    sqlite("append", "seat.reserved", payload, "--stream", "show", stream, "--actor", "user", "ada")

    read, wide, streams = sqlite("read").out, sqlite("read", "--wide").out, sqlite("streams").out
    [line] = [splitline for splitline in read.splitlines() if "seat.reserved" in splitline]
    assert payload in line
    assert f"show {stream} #1" in line
    assert "user ada" in line
    assert f"stream_id        {stream}" in wide
    assert "payload_hash" in wide
    assert any(stream in splitline for splitline in streams.splitlines())
