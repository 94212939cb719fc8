r"""Guards: rules that refuse secrets and personal data before an event is stored.

Example:
    import re

    import seriatim
    from seriatim.guards import CREDENTIALS, PatternGuard, Rule

    badges = Rule("badge", re.compile(r"\bBADGE-\d{6}\b"))
    log = seriatim.open("memory:", guard=PatternGuard("house", [*CREDENTIALS, badges]))
"""

from seriatim.core.guard import Guard, PatternGuard, ScannedEvent, Violation
from seriatim.core.guard_rules import CREDENTIALS, PERSONAL_DATA, Rule

__all__ = [
    "CREDENTIALS",
    "PERSONAL_DATA",
    "Guard",
    "PatternGuard",
    "Rule",
    "ScannedEvent",
    "Violation",
]
