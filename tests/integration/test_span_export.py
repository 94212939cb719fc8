"""Spans exported by OTLP to a collector, from separate processes."""

import os
import subprocess
import sys

from tests.fixtures.otlp_collector import collect_spans

APPENDING = """
import seriatim
from seriatim.telemetry.span_export import current, joined, spans_sent

log = seriatim.open("memory:")
with spans_sent("seriatim-test"{wanted}):
    log.append([seriatim.NewEvent("a")])
    print(current() is not None)
"""
IN_A_TASK = """
import seriatim
from seriatim.telemetry.span_export import Exporting, joined

log = seriatim.open("memory:")
for _ in range(2):
    with joined(Exporting("seriatim-task", {{"OTEL_EXPORTER_OTLP_ENDPOINT": "{url}"}})):
        log.append([seriatim.NewEvent("a")])
"""
MISSING = """
import sys
sys.modules["opentelemetry.sdk"] = None
from seriatim.telemetry.span_export import Exporting, joined, spans_sent
with spans_sent("x"), joined(Exporting("x", {{}})):
    print("goes on")
with spans_sent("x", wanted=True):
    pass
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a separate process."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=known | environment, capture_output=True, text=True, check=False
    )


def test_spans_are_sent() -> None:
    """M2: remaining spans are sent at the end, under the configured service name."""
    with collect_spans() as collector:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        first = run(APPENDING.format(wanted=""), **endpoint)
        second = run(APPENDING.format(wanted=""), OTEL_SERVICE_NAME="shop", **endpoint)
        none = run(APPENDING.format(wanted=", wanted=False"), **endpoint)
        off = run(APPENDING.format(wanted=""), OTEL_SDK_DISABLED="true", **endpoint)
        unset = run(APPENDING.format(wanted=""))

    assert [one.stdout for one in (first, second, none, off, unset)] == [
        "True\n",
        "True\n",
        "False\n",
        "False\n",
        "False\n",
    ]
    assert [(one.service, one.name) for one in collector.spans] == [
        ("seriatim-test", "seriatim.append"),
        ("shop", "seriatim.append"),
    ]


def test_a_task_sends_as_its_job_does() -> None:
    """M2: a task elsewhere knows from its job where spans go, and sends them when it ends."""
    with collect_spans() as collector:
        done = run(IN_A_TASK.format(url=collector.url))

    assert done.returncode == 0, done.stderr
    assert [one.service for one in collector.named("seriatim.append")] == ["seriatim-task"] * 2


def test_a_missing_extra() -> None:
    """M2: without the extra, an explicit request fails with the package to install."""
    done = run(MISSING.format(), OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")

    assert done.stdout == "goes on\n"
    assert done.returncode == 1
    assert "pip install 'seriatim[otel]'" in done.stderr.splitlines()[-1]
    assert "spans are not exported" in done.stderr
