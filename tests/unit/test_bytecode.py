"""Processes that tests start do not compile the modules that they import each time."""

import subprocess
import sys


def test_processes_of_a_run_keep_compiled_modules() -> None:
    """A process writes compiled modules where this one does, even if the environment forbids it."""
    program = "import sys; print(sys.dont_write_bytecode, sys.pycache_prefix)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["False", str(sys.pycache_prefix)]
