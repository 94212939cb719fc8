"""Sealed copies of the log as Parquet segments: writing, comparing, reading and restoring them."""
