"""The log on Spark: reading, appending, projecting, archiving and auditing it."""
