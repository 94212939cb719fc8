"""The log: validate, commit, read, query and follow events, for all profiles."""
