"""Fault tests: processes that race, stop, crash, fork and lose their connections."""
