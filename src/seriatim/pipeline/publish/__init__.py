"""The publisher: send the log to Kafka, at least once and in order per key."""
