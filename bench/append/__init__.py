"""The append suite; each section takes the environment and returns figures."""
