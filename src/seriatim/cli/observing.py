"""How a command that runs for long is watched: metrics, spans, and logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import typer

from seriatim.log.arguments import bad
from seriatim.telemetry.exporting import spans_sent
from seriatim.telemetry.job_metrics import JobMetrics
from seriatim.telemetry.logs import Format, write_logs
from seriatim.telemetry.metrics import Metrics, Shown

MetricsAt = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Show metrics in Prometheus format there, under /metrics.",
        show_default=False,
    ),
]
Otel = Annotated[
    bool | None,
    typer.Option(
        "--otel/--no-otel",
        help="Send OpenTelemetry spans by OTLP over HTTP. [default: if "
        "$OTEL_EXPORTER_OTLP_ENDPOINT is set]",
        show_default=False,
    ),
]
LogFormat = Annotated[
    str, typer.Option("--log-format", metavar="FORMAT", help="What logs look like: text or json.")
]


@contextmanager
def observed(
    service: str, *, metrics: str | None = None, otel: bool | None = None, log_format: str = "text"
) -> Iterator[JobMetrics | None]:
    """Log, send spans and show metrics while a command runs, as it was asked to."""
    with logs_written(log_format), spans_sent(service, wanted=otel):
        if metrics is None:
            yield None
            return
        shown = Metrics()
        jobs = JobMetrics(shown)
        with closing(Shown(shown, metrics)):
            yield jobs


@contextmanager
def logs_written(log_format: str) -> Iterator[None]:
    """Write logs to stderr while a command runs."""
    stop = write_logs(checked_format(log_format))
    try:
        yield
    finally:
        stop()


def checked_format(given: str) -> Format:
    """Return what logs are to look like."""
    if given not in ("text", "json"):
        raise bad("log-format", "is text or json")
    return "json" if given == "json" else "text"
