"""Audit of a whole log on Spark."""
