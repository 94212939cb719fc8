"""A shop on Django: its read model follows the log in a process of its own."""
