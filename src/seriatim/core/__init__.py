"""The pure rules of the log: no clock, no randomness, no environment, no I/O."""
