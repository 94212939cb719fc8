"""Projections on Spark: catch-up, live, rebuild and proof of read models."""
