"""The SQLite store on real files."""
