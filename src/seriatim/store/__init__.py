"""Where a log lives: one port, and a backend for memory, SQLite and Postgres."""
