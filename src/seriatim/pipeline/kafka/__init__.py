"""Kafka: addresses, messages, clients and the dead-letter topic."""
