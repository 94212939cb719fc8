"""The SQLite backend: a log in one file, the default for embedded use."""
