"""The log on Postgres 13 or newer."""
