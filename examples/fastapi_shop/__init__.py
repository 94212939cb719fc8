"""A shop on FastAPI: its projection and its handler follow the log in the web process."""
