"""The HTTP protocol shared by client and service: messages, records and problems."""
