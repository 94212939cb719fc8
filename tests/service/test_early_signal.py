"""A signal that arrives while the service starts."""

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import os, signal, sys
from seriatim.server import ServiceLocation, ServiceSettings, serve

serve(
    ServiceLocation(url=sys.argv[1], port=0),
    ServiceSettings(processes=int(sys.argv[2])),
    lambda address: os.kill(os.getpid(), signal.SIGTERM),
)
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_during_the_start_ends_the_service(tmp_path: Path, processes: int) -> None:
    """K3: SIGTERM that arrives while the service starts ends it with exit code 0."""
    command = [sys.executable, "-c", _PROGRAM, f"sqlite:///{tmp_path}/log.db", str(processes)]
    ended = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr
