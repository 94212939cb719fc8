"""From Spark's errors to ours."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException

from seriatim.core.errors import ALL_ERRORS, BackendFailure, SeriatimError

_OURS = re.compile(r"seriatim\.core\.errors\.(\w+): (.+)")
_KINDS = {kind.__name__: kind for kind in ALL_ERRORS}
_SAID_MAX = 2000


def failure_of(error: PySparkException) -> SeriatimError:
    """Say what made a job fail: our own error if a task raised one, Spark's words otherwise."""
    text = str(error)
    found = _OURS.findall(text)
    if found and found[-1][0] in _KINDS:
        name, said = found[-1]
        return _KINDS[name](said[:_SAID_MAX])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = (lines or ["no reason given"])[0]
    # A worker that a busy machine was too slow to start may be there at the next try.
    late = "failed to connect back" in text
    return BackendFailure(f"Spark failed: {said}"[:_SAID_MAX], retryable=late)
