"""The service suite; each section takes the environment and returns figures."""
