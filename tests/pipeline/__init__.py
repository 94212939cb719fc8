"""Tests of the pipeline on a Spark session."""
