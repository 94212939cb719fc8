"""The pytest plugin, as pytest loads it from the installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import seriatim
from seriatim import NewEvent

TESTS = """
import sys


def test_pytest_loads_the_plugin_alone(request):
    assert request.config.pluginmanager.has_plugin("seriatim")
    assert not [name for name in sys.modules if name.split(".")[0] == "seriatim"]


def test_a_log_in_memory(memory_log):
    assert memory_log.head() == 0
    memory_log.append([{"event_type": "a"}])
    memory_log.__class__.opened = memory_log


def test_the_log_was_closed_and_is_new(memory_log):
    import pytest
    import seriatim

    assert memory_log.head() == 0
    with pytest.raises(seriatim.SeriatimError):
        seriatim.Log.opened.append([{"event_type": "a"}])


def test_a_log_in_a_file(sqlite_log, tmp_path):
    sqlite_log.append([{"event_type": "a"}])
    assert (tmp_path / "log.db").exists()
"""


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder of its own."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )


def test_fixtures_are_available_and_lazy(tmp_path: Path) -> None:
    """F1: pytest finds both fixtures, and loads them without importing Seriatim."""
    (tmp_path / "test_own.py").write_text(TESTS)
    done = run_pytest(tmp_path)

    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_the_plugin_can_be_disabled(tmp_path: Path) -> None:
    """F1: with `-p no:seriatim` there are no fixtures of that name, and all else works."""
    (tmp_path / "test_own.py").write_text("def test_x(memory_log): pass")
    done = run_pytest(tmp_path, "-p", "no:seriatim")

    assert "fixture 'memory_log' not found" in done.stdout, done.stdout + done.stderr


def test_a_fixture_of_the_same_name_wins(tmp_path: Path) -> None:
    """F1: a project that has a fixture of that name keeps its own."""
    (tmp_path / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture\ndef memory_log():\n    return 7\n"
    )
    (tmp_path / "test_own.py").write_text("def test_x(memory_log): assert memory_log == 7")

    assert "1 passed" in run_pytest(tmp_path).stdout


def test_the_entry_point_is_installed() -> None:
    """F1: the installed package names the plugin."""
    [plugin] = [one for one in entry_points(group="pytest11") if one.name == "seriatim"]

    assert plugin.value == "pytest_seriatim"


def test_helpers_need_no_pytest() -> None:
    """F1: the helpers are imported without pytest and the contract suite."""
    program = (
        "import sys; sys.modules['pytest'] = None\n"
        "from seriatim.testing import HandlerRunner, check_batches, fold, given\n"
        "given().when(lambda records: [{'event_type': 'a'}]).then(['a'])\n"
        "print([name for name in sys.modules if name.endswith('Contract')"
        " or name == 'seriatim.testing.contracts'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_logs_of_the_plugin(memory_log: seriatim.Log, sqlite_log: seriatim.Log) -> None:
    """F1: the fixtures are open logs, also in this suite."""
    for log in (memory_log, sqlite_log):
        assert log.append([NewEvent("a")]).first_position == 1
