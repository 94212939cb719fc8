"""The sections of the benchmark of delivery."""
