"""Telemetry: in-process events, metrics, spans and structured logs."""
