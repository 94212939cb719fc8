"""Spans, metrics and logs of long-running commands."""

import json
from pathlib import Path

import pytest

import seriatim
from seriatim import NewEvent
from tests.acceptance.cli_program import Program
from tests.fixtures.otlp_collector import collect_spans

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
DECLARED = """
import logging
from seriatim import handler

@handler("seats", effect="keyed")
def seats(event, context):
    pass
"""


@pytest.mark.slow
@pytest.mark.usefixtures("quick_java")
def test_workers_and_projectors_send_spans(sqlite: Program) -> None:
    """M2: worker and projector send spans; a handler's span is in the trace of its event."""
    Path(sqlite.folder, "shop.py").write_text(DECLARED)
    with seriatim.open(sqlite.env["SERIATIM_URL"]) as log:
        log.append([NewEvent("seat.taken", metadata={"traceparent": f"00-{TRACE}-{SPAN}-01"})])
    with collect_spans() as collector:
        sqlite.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        ran = sqlite("work", "shop:seats", "--log-format", "json", "--json")
        projected = sqlite("project", "run", "activity", "--otel", "--json")

    assert (ran.code, ran.json["done"]) == (0, 1), ran.err
    assert projected.code == 0, projected.err
    [effect] = collector.named("seriatim.handle")
    assert (effect.service, effect.trace_id, effect.parent_id) == ("seriatim-worker", TRACE, SPAN)
    assert [one.service for one in collector.named("seriatim.work")] == ["seriatim-worker"]
    assert {one.service for one in collector.named("seriatim.project")} == {"seriatim-projector"}
    for line in ran.err.splitlines():
        assert json.loads(line)


def test_an_unknown_log_format_is_refused(sqlite: Program) -> None:
    """M2: a log format other than text and json is refused."""
    ran = sqlite("project", "run", "activity", "--log-format", "xml")

    assert (ran.code, "text or json" in ran.err) == (2, True)
