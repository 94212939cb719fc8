"""Spans exported by OTLP to a collector, from separate processes."""

import os
import subprocess
import sys

from tests.fixtures.otlp_collector import collect_spans

APPENDING = """
import seriatim
from seriatim.telemetry.span_export import current_span_export, join_span_export, export_spans

log = seriatim.open("memory:")
with export_spans("seriatim-test"{wanted}):
    log.append([seriatim.NewEvent("a")])
    print(current_span_export() is not None)
"""
IN_A_TASK = """
import seriatim
from seriatim.telemetry.span_export import SpanExport, join_span_export

log = seriatim.open("memory:")
for _ in range(2):
    with join_span_export(SpanExport("seriatim-task", {{"OTEL_EXPORTER_OTLP_ENDPOINT": "{url}"}})):
        log.append([seriatim.NewEvent("a")])
"""
MISSING = """
import sys
sys.modules["opentelemetry.sdk"] = None
from seriatim.telemetry.span_export import SpanExport, join_span_export, export_spans
with export_spans("x"), join_span_export(SpanExport("x", {{}})):
    print("goes on")
with export_spans("x", enabled=True):
    pass
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a separate process."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=known | environment, capture_output=True, text=True, check=False
    )


def test_spans_are_exported() -> None:
    """M2: spans are exported under the configured service name, unless export is disabled."""
    with collect_spans() as collector:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        first = run(APPENDING.format(wanted=""), **endpoint)
        second = run(APPENDING.format(wanted=""), OTEL_SERVICE_NAME="shop", **endpoint)
        none = run(APPENDING.format(wanted=", enabled=False"), **endpoint)
        off = run(APPENDING.format(wanted=""), OTEL_SDK_DISABLED="true", **endpoint)
        unset = run(APPENDING.format(wanted=""))

    assert [one.stdout for one in (first, second, none, off, unset)] == [
        "True\n",
        "True\n",
        "False\n",
        "False\n",
        "False\n",
    ]
    assert [(span.service, span.name) for span in collector.spans] == [
        ("seriatim-test", "seriatim.append"),
        ("shop", "seriatim.append"),
    ]


def test_tasks_export_spans_like_their_job() -> None:
    """M2: a task exports its spans with the settings of its job."""
    with collect_spans() as collector:
        done = run(IN_A_TASK.format(url=collector.url))

    assert done.returncode == 0, done.stderr
    assert [one.service for one in collector.named("seriatim.append")] == ["seriatim-task"] * 2


def test_export_without_its_extra() -> None:
    """M2: without the extra, an explicit request fails with the package to install."""
    done = run(MISSING.format(), OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")

    assert done.stdout == "goes on\n"
    assert done.returncode == 1
    assert "pip install 'seriatim[otel]'" in done.stderr.splitlines()[-1]
    assert "spans are not exported" in done.stderr
