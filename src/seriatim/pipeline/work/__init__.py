"""Workers: run handlers on Spark, with events from the log or from Kafka."""
