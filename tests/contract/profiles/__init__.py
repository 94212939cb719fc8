"""Contract tests of the profiles on every backend."""
