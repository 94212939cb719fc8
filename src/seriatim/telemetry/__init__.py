"""Telemetry events that a user can subscribe to."""
