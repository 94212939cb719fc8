"""Archives: sealed copies of the log as Parquet segments, and their verification and restore."""
