"""A shop on FastAPI: its own writes are read from a projection that follows in the process."""
