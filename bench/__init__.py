"""Benchmarks: each measures us, our rivals and the bare floors interleaved in one run."""
