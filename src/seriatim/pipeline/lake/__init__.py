"""Export of the log to Delta and Iceberg tables, each event exactly once."""
