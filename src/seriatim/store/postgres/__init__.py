"""The Postgres backend, for Postgres 13 or newer."""
