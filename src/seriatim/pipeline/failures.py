"""From Spark's errors to ours."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from seriatim.core.errors import ALL_ERRORS, BackendFailure, SeriatimError

# What a driver may meet; a worker's process that was killed comes as the bare Java error.
SPARK_ERRORS = (PySparkException, Py4JJavaError)

_OURS = re.compile(r"seriatim\.core\.errors\.(\w+): (.+)")
_KINDS = {kind.__name__: kind for kind in ALL_ERRORS}
_SAID_MAX = 2000
_CRASHED = "Python worker exited unexpectedly"


def failure_of(error: Exception) -> SeriatimError:
    """Say what made a job fail: our own error if a task raised one, Spark's words otherwise."""
    text = str(error)
    found = _OURS.findall(text)
    if found and found[-1][0] in _KINDS:
        name, said = found[-1]
        return _KINDS[name](said[:_SAID_MAX])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = (lines or ["no reason given"])[0]
    # A worker that a busy machine was too slow to start may be there at the next try.
    passing = "failed to connect back" in text or _CRASHED in text
    if _CRASHED in text:
        said = "a worker's Python process was killed, or crashed"
    return BackendFailure(f"Spark failed: {said}"[:_SAID_MAX], retryable=passing)
