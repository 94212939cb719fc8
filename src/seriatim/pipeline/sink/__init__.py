"""Append the rows of a DataFrame to the log."""
