"""Read ranges of the log from its database as Arrow record batches."""
