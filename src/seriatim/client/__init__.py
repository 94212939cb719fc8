"""A log over HTTP: the store port, spoken to a service."""
