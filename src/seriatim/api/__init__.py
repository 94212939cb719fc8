"""The log over HTTP: an ASGI application, its routes as data, and the server that runs it."""
