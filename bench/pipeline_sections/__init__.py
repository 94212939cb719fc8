"""The sections of the pipeline's benchmark, one file for each question."""
