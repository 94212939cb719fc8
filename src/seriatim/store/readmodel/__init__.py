"""Read models: the tables that projections maintain, and their cursors."""
