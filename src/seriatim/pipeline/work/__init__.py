"""Workers: handlers on Spark, fed from the log or from Kafka."""
