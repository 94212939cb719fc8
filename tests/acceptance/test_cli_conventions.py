"""Conventions of all commands: exit codes, one-line errors, clean stdout, complete help."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import seriatim
from tests.acceptance.cli_program import COMMANDS, Program


@pytest.mark.parametrize(
    ("args", "code", "error"),
    [
        (("append", "x", "{bad"), 2, "invalid_argument"),
        (("append", "x", '{"a": 1, "a": 2}'), 2, "invalid_argument"),
        (("append", "x", '{"a": NaN}'), 2, "invalid_argument"),
        (("append",), 2, "invalid_argument"),
        (("append", "x", "--expect-seq", "1"), 2, "invalid_argument"),
        (("append", "x", "--expect-version", "1"), 2, "invalid_argument"),
        (("append", "x", "--metadata", "novalue"), 2, "invalid_argument"),
        (("read", "--after", "5", "--until", "1"), 2, "invalid_argument"),
        (("tail", "--after", "99"), 2, "invalid_argument"),
        (("query", "--query", '{"filters": 7}'), 2, "invalid_query"),
        (("init", "--app-role", "app"), 2, "invalid_argument"),
        (("import", "missing.ndjson"), 2, "invalid_argument"),
        (("read", "--url", "mysql://x"), 2, "invalid_argument"),
        (("read", "--tenant", " x"), 2, "invalid_argument"),
        (("append", "x", "[1]"), 3, "invalid_event"),
        (("append", " x"), 3, "invalid_event"),
        (("append", "x", '{"password": "hunter2-longer"}'), 3, "pii_policy_violation"),
        (("read", "--event-id", "nobody"), 3, "not_found"),
        (("read", "--url", "sqlite:///nowhere.db"), 4, "backend_failure"),
        (("verify", "--url", "postgresql://localhost:1/x"), 4, "backend_failure"),
    ],
)
def test_an_error_is_json_on_stderr_with_an_exit_code(
    sqlite: Program, args: tuple[str, ...], code: int, error: str
) -> None:
    """L1: stdout stays empty, stderr is one JSON error, and the exit code gives its kind."""
    result = sqlite(*args, "--json")

    assert (result.code, result.out) == (code, "")
    assert result.error["code"] == error
    assert set(result.error) == {"code", "message", "details", "retryable"}
    assert "hunter2" not in result.err


def test_text_errors_are_one_line_with_a_remedy(sqlite: Program) -> None:
    """L1: a text error is one line with the code, the message and the remedy."""
    sqlite("append", "x", "--stream", "s", "a")
    result = sqlite("append", "x", "--stream", "s", "a", "--expect-seq", "7")

    error = "event_sequence_invalid: the stream's last sequence number is 1, expected 7"
    assert result.err == f"{error} → read the stream again and retry\n"


def test_reading_a_missing_log_creates_nothing(program_without_log: Program) -> None:
    """L3: reading a missing log names its URL and `seriatim init`, and creates no file."""
    result = program_without_log("read")

    assert result.code == 4
    assert "seriatim init" in result.err
    assert "using sqlite:///seriatim.db" in result.err
    assert list(program_without_log.folder.iterdir()) == []


def test_options_may_stand_before_the_command(program_without_log: Program) -> None:
    """The URL can be given before and after the command; the one after it has priority."""
    assert (
        program_without_log("--url", "sqlite:///a.db", "--json", "init").json["backend"] == "sqlite"
    )
    assert (
        program_without_log("--url", "sqlite:///b.db", "init", "--url", "sqlite:///c.db").code == 0
    )
    assert {path.suffix for path in program_without_log.folder.glob("c.db")} == {".db"}
    assert not (program_without_log.folder / "b.db").exists()


def test_a_password_is_never_printed(program_without_log: Program) -> None:
    """K1: neither output nor error contains the password of a URL."""
    result = program_without_log("init", "--url", "postgresql://app:topsecret@localhost:1/x")

    assert result.code == 4
    assert "topsecret" not in result.out + result.err


def test_each_tenant_reads_its_own_events(sqlite: Program) -> None:
    """K2: each tenant reads its own events."""
    sqlite("append", "x", "--tenant", "a")

    assert len(sqlite("read", "--tenant", "a", "--json").lines) == 1
    assert sqlite("read", "--json").out == ""
    assert sqlite("streams", "--tenant", "b", "--json").out == ""


@pytest.mark.parametrize(
    "args",
    [
        ("init",),
        ("serve",),
        ("console", "--no-open"),
        ("doctor",),
        ("verify",),
        ("audit",),
        ("archive", "--to", "cold"),
        ("archive", "verify", "cold"),
        ("archive", "restore", "cold"),
        ("lake", "delta", "cold"),
    ],
)
def test_commands_on_all_tenants_refuse_a_tenant(sqlite: Program, args: tuple[str, ...]) -> None:
    """K2: a command on the whole log refuses the option for one tenant."""
    result = sqlite(*args, "--tenant", "acme", "--json")

    assert (result.code, result.error["code"]) == (2, "invalid_argument")
    assert result.error["details"]["argument"] == "tenant"


def test_control_characters_are_escaped(sqlite: Program) -> None:
    """K1: control characters of events are escaped, and markup is printed as text."""
    sqlite("append", "x", '{"t": "[red]\\u009b31m\\u202e"}', "--tag", "\x1b[31m", "--event-id", "e")

    output = sqlite("read").out + sqlite("read", "--event-id", "e").out

    assert "[red]" in output
    assert not {"\x1b", "\x9b", "\u202e"} & set(output)


def test_a_broken_pipe_is_quiet(sqlite: Program) -> None:
    """A command whose reader closes the pipe ends with code 141 and without output on stderr."""
    lines = "\n".join(
        json.dumps({"event_type": "x", "payload": {"t": "y" * 500}}) for _ in range(900)
    )
    sqlite("append", "--batch", "-", given=lines)
    for args in (("read", "--json"), ("read", "--all"), ("export", "-")):
        with sqlite.start(*args) as reader:
            assert reader.stdout is not None
            assert reader.stderr is not None
            reader.stdout.readline()
            reader.stdout.close()
            err = reader.stderr.read()

        assert (reader.returncode, err) == (141, b""), args


def test_import_reports_refused_events(sqlite: Program) -> None:
    """B2: refused events set the exit code, and invalid JSON stops the import with its line."""
    mixed = '{"event_type":"x","event_id":"1"}\n{"event_type":" ","event_id":"2"}\n'
    (sqlite.folder / "mixed.ndjson").write_text(mixed)
    (sqlite.folder / "broken.ndjson").write_text('{"event_type":"x","event_id":"1"}\n{"event')

    result = sqlite("import", "mixed.ndjson")
    read = sqlite("import", "-", "--json", given=mixed)
    broken = sqlite("import", "broken.ndjson", "--json")

    assert (result.code, "1 appended" in result.out, "invalid_event" in result.out) == (
        1,
        True,
        True,
    )
    assert (read.code, read.json["reused"], read.json["refused"]) == (1, 1, 1)
    assert (broken.code, broken.error["details"]["line"]) == (3, 2)


def test_verify_finds_a_changed_byte(sqlite: Program) -> None:
    """F2: verify fails on a log that was changed in its file."""
    sqlite("append", "x", '{"n":1234567}')
    file = sqlite.folder / "log.db"
    with_wal = [file, Path(f"{file}-wal")]
    for path in with_wal:
        if path.exists():
            path.write_bytes(path.read_bytes().replace(b"1234567", b"7654321"))

    result = sqlite("verify", "--json")

    assert result.code in (1, 4)
    if result.code == 1:
        assert result.json["ok"] is False


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_option_and_the_exit_codes(
    program_without_log: Program, command: str
) -> None:
    """The help of each command names all of its options and the exit codes."""
    from typer.main import get_command

    from seriatim.cli.app import app

    result = program_without_log(command, "--help")
    group = get_command(app)
    params = group.commands[command].params  # type: ignore[attr-defined] # a group has commands
    options = [
        name for param in params if not getattr(param, "hidden", False) for name in param.opts
    ]

    assert result.code == 0
    assert [name for name in options if name.startswith("--") and name not in result.out] == []
    assert "--json" in result.out
    assert "130 stopped by Ctrl-C" in result.out


def test_version_is_printed_without_a_log(program_without_log: Program) -> None:
    """`--version` needs no log; unknown commands and options are usage errors."""
    assert program_without_log("--version").out == f"seriatim {seriatim.__version__}\n"
    assert program_without_log("nonsense").code == 2
    assert program_without_log("read", "--nonsense").code == 2


def test_a_command_starts_without_modules_of_others(tmp_path: Path) -> None:
    """Commands import what only they need when they run, so that each starts quickly."""
    code = (
        "import sys, seriatim.cli.app; "
        "heavy = {'multiprocessing', 'rich.progress', 'seriatim.examples', 'seriatim.api', "
        "'seriatim.pipeline', 'seriatim.store.postgres', 'psycopg', 'pyspark', 'uvicorn'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, cwd=tmp_path, text=True, check=False
    )

    assert (ran.stdout, ran.stderr) == ("[]\n", "")


def test_without_its_extra_the_program_names_it(tmp_path: Path) -> None:
    """Without Typer the program names the extra to install."""
    code = "import sys; sys.modules['typer'] = None\nfrom seriatim.cli import main\nmain()"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, cwd=tmp_path, text=True, check=False
    )

    assert ran.returncode == 2
    assert "pip install 'seriatim[cli]'" in ran.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("quick_java")
def test_the_demo_verifies_its_claims(program_without_log: Program) -> None:
    """The demo verifies its claims, writes its picture, keeps its log, and fits 100 columns."""
    result = program_without_log("demo", "--svg", "demo.svg")
    report = program_without_log("demo", "--json").json

    assert result.code == 0
    assert max(map(len, result.out.splitlines())) <= 100
    assert "claims held" in result.out
    assert "seriatim console --url" in result.out
    assert (program_without_log.folder / "demo.svg").read_text().startswith("<svg")
    assert report["ok"]
    assert program_without_log("verify", "--url", report["url"], "--json").json["ok"]
