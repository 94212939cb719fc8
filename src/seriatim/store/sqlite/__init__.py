"""The log in one SQLite file: the embedded default."""
