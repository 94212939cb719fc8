"""The pages of the console on a large log, compared with the API reads that they make."""
