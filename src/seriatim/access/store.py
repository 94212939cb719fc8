"""The whole access store: tokens, quotas and answers in one place."""

from seriatim.access.answers import Answers
from seriatim.access.quotas import Quotas
from seriatim.access.tokens import Tokens


class Access(Tokens, Quotas, Answers):
    """Who may do what with a log, how much of it, and what was answered."""
