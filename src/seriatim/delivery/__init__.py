"""Delivery: run handlers so that each event has its effect once, despite crashes and duplicates."""
