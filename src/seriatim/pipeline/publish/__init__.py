"""The publisher: the log to Kafka, at least once, in order per key."""
