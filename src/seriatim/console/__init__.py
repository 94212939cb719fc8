"""The console: pages for people, rendered on the server from the routes of the HTTP API."""
