"""Who may do what with a log over HTTP, and how much of it: tokens, rights, quotas, answers."""
