"""Mutation tests: changes of the source that break a guarantee, and the tests that must fail."""
