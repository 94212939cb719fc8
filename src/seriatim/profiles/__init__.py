"""Profiles: facades over the log with their own names and rules (traces, facts, aggregates)."""
