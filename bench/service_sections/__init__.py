"""Sections of the benchmark of the service."""
