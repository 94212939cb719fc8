"""Mutations of the source, each breaking one promise, and the tests that must notice."""
