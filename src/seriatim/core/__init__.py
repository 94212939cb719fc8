"""The rules of the log as pure code: no clock, no randomness, no environment, no I/O."""
