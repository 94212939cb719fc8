"""The HTTP client: a store that accesses a log through a service."""
