"""Storage of the log: the `Store` interface and its memory, SQLite and Postgres backends."""
