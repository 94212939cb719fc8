"""Projections on Spark: catch up, follow, rebuild and verify read models."""
