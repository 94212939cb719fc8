"""Access control of the HTTP service: tokens, rights, quotas and stored responses."""
