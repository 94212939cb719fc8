"""Telemetry: in-process events, metrics, spans and structured logs.

Example:
    import seriatim
    from seriatim.telemetry import LogMetrics, Metrics

    metrics = Metrics()
    with seriatim.open("memory:") as log:
        LogMetrics(metrics).observe(log)
        text, content_type = metrics.render()
"""

from seriatim.telemetry.event_bus import Telemetry, TelemetryEvent
from seriatim.telemetry.log_format import bind_fields, write_logs
from seriatim.telemetry.log_metrics import LogMetrics
from seriatim.telemetry.metrics import JobMetrics, Metrics, MetricsServer
from seriatim.telemetry.span_export import export_spans
from seriatim.telemetry.tracer import use_provider

__all__ = [
    "JobMetrics",
    "LogMetrics",
    "Metrics",
    "MetricsServer",
    "Telemetry",
    "TelemetryEvent",
    "bind_fields",
    "export_spans",
    "use_provider",
    "write_logs",
]
