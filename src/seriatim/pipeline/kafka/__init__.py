"""Kafka: where it is, what its topics are called, and what a message holds."""
