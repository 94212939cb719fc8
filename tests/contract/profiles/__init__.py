"""What the seeds' own vocabularies promise, on every backend."""
