"""A shop on Django: its read model and its effects follow the log in a process of their own."""
