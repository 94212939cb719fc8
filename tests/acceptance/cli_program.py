"""The program as a subprocess, as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

COMMANDS = (
    "init",
    "append",
    "read",
    "tail",
    "streams",
    "query",
    "import",
    "export",
    "verify",
    "doctor",
    "audit",
    "publish",
    "reconcile",
    "work",
    "demo",
)
TIMEOUT_S = 300
HEARING = """
import signal
from seriatim.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


class CommandResult(msgspec.Struct, frozen=True):
    """The exit code and output of a finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON lines on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """The one JSON error on stderr."""
        return json.loads(self.err)


class Program:
    """Runs `seriatim` with one log in one folder."""

    def __init__(self, url: str | None, folder: Path) -> None:
        self.folder = folder
        self.env = {
            name: value
            for name, value in os.environ.items()
            if name not in ("SERIATIM_URL", "COLUMNS", "FORCE_COLOR")
        }
        self.env |= {"COLUMNS": "120", "NO_COLOR": "1", "TMPDIR": str(folder)}
        if url is not None:
            self.env["SERIATIM_URL"] = url

    def __call__(self, *args: str, given: str | bytes = b"") -> CommandResult:
        """Run a command to its end."""
        ran = subprocess.run(
            [sys.executable, "-m", "seriatim", *args],
            input=given.encode() if isinstance(given, str) else given,
            capture_output=True,
            cwd=self.folder,
            env=self.env,
            timeout=TIMEOUT_S,
            check=False,
        )
        return CommandResult(ran.returncode, ran.stdout.decode(), ran.stderr.decode())

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """Start a command in its own process group, with the default handling of Ctrl-C."""
        return subprocess.Popen(
            [sys.executable, "-c", HEARING, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env=self.env,
            process_group=0,
        )
