"""The Spark data source `seriatim`: batch and stream readers, sessions and DataFrames."""
