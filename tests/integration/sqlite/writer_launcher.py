"""Starts processes that write to a log."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def start_writer(path: str, count: int, name: str, *more: int) -> subprocess.Popen[str]:
    """Start a process that appends `count` events to its own stream, printing each position."""
    module = "tests.integration.sqlite.writer_process"
    arguments = [sys.executable, "-m", module, path, str(count), name, *map(str, more)]
    return subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True)
