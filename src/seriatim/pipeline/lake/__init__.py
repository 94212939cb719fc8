"""The log as tables of a data lake, Delta and Iceberg, each event once."""
