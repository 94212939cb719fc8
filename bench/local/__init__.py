"""The local engine of projections, compared with plain code and with Spark."""
