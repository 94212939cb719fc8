"""The pipeline suite; each section takes the environment and returns figures."""
