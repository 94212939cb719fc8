"""Options for the metrics, spans and logs of long-running commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import typer

from seriatim.log.arguments import invalid_argument
from seriatim.telemetry.job_metrics import JobMetrics
from seriatim.telemetry.log_format import LogFormat, write_logs
from seriatim.telemetry.metrics import Metrics, MetricsServer
from seriatim.telemetry.span_export import export_spans

MetricsAddress = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve metrics in Prometheus format at this address, under /metrics.",
        show_default=False,
    ),
]
Otel = Annotated[
    bool | None,
    typer.Option(
        "--otel/--no-otel",
        help="Export OpenTelemetry spans by OTLP over HTTP. [default: enabled if "
        "$OTEL_EXPORTER_OTLP_ENDPOINT is set]",
        show_default=False,
    ),
]
LogFormatOption = Annotated[
    str, typer.Option("--log-format", metavar="FORMAT", help="The format of logs: text or json.")
]


@contextmanager
def observe_command(
    service: str, *, metrics: str | None = None, otel: bool | None = None, log_format: str = "text"
) -> Iterator[JobMetrics | None]:
    """Write logs, export spans and serve metrics while a command runs.

    Args:
        service: The service name of the exported spans.
        metrics: The address to serve metrics at, as HOST:PORT; None serves none.
        otel: Whether to export spans; None decides by the environment.
        log_format: `text` or `json`.

    Yields:
        The metrics of the job, or None if none are served.

    """
    with log_to_stderr(log_format), export_spans(service, enabled=otel):
        if metrics is None:
            yield None
            return
        registry = Metrics()
        job_metrics = JobMetrics(registry)
        with closing(MetricsServer(registry, metrics)):
            yield job_metrics


@contextmanager
def log_to_stderr(log_format: str) -> Iterator[None]:
    """Write logs to stderr while a command runs."""
    stop = write_logs(parse_log_format(log_format))
    try:
        yield
    finally:
        stop()


def parse_log_format(name: str) -> LogFormat:
    """Return the log format with this name, or raise `InvalidArgument`."""
    if name not in ("text", "json"):
        raise invalid_argument("log-format", "must be text or json")
    return "json" if name == "json" else "text"
