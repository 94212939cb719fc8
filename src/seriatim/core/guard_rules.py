"""What the guards look for: credentials and keys, personal data, and the frozen list of traces.

Every pattern is anchored on its left and bounded in length, so that no text costs more than a
bounded number of steps for each of its characters. A rule's cues must stand in the JSON text of
whatever the rule hits: so they hold only characters that JSON writes unescaped, and for rules about
keys the `":"` that it puts behind them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product

import msgspec

from seriatim.core.needles import Cue


class Rule(msgspec.Struct, frozen=True):
    """One thing that must not be stored, and how to see it in a string.

    `cues` tell by a glance at an event's whole text that the rule cannot hit; without them it looks
    at every string. `folded` rules and their cues see lower case. `accept` has the last word on a
    match (a checksum). `under` limits the rule to values of keys that end so, in lower case.
    """

    name: str
    pattern: re.Pattern[str]
    cues: tuple[Cue, ...] = ()
    folded: bool = False
    accept: Callable[[str], bool] | None = None
    under: tuple[str, ...] = ()

    def hits(self, text: str, key: str = "") -> bool:
        """Tell whether a string is refused, standing under that key of an object."""
        if self.under and not key.lower().endswith(self.under):
            return False
        matches = self.pattern.finditer(text.lower() if self.folded else text)
        if self.accept is None:
            return next(matches, None) is not None
        return any(self.accept(match.group()) for match in matches)


def _rule(
    name: str, pattern: str, *cues: str | Cue, folded: bool = False, under: tuple[str, ...] = ()
) -> Rule:
    held = tuple(cue if isinstance(cue, Cue) else Cue(cue) for cue in cues)
    return Rule(name, re.compile(pattern), held, folded=folded, under=under)


def _spellings(*names: str) -> tuple[str, ...]:
    """Return each name as `two_words`, `two-words` and `twowords`."""
    return tuple(
        dict.fromkeys(n.replace(" ", joint) for n, joint in product(names, ("_", "-", "")))
    )


_SECRET_NAMES = _spellings(
    "password",
    "passwd",
    "passphrase",
    "secret",
    "private key",
    "api key",
    "secret key",
    "secret access key",
    "access token",
    "auth token",
    "refresh token",
    "session token",
)

_SECRET_ENDS = ("password", "passwd", "passphrase", "secret", "key", "token")

# What stands where a secret was, or instead of one: a mask, a placeholder, a reference, a state.
_HARMLESS = (
    r"(?:[*•x.…-]{2,64}|\[[^\]]{0,64}\]|<[^>]{0,64}>|\$?\{{1,2}[^}]{0,64}\}{1,2}|\$[a-z0-9_]{1,64}"
    r"|(?:arn|vault|env|kms|ref|file):\S{0,256}|op://\S{0,256}"
    r"|redacted|filtered|masked|hidden|removed|omitted|encrypted|n/a|null|none|nil|undefined|true"
    r"|false|yes|no|set|unset|missing|required|optional|invalid|expired|changed|rotated)"
)
_VALUE = rf"""["']?(?!{_HARMLESS}(?:[\s"'&;,)]|$))[^\s"'&;,=]{{4}}"""
_USERINFO = r"""[^\s"\\/@:\x00-\x1f\x7f]"""

CREDENTIALS: tuple[Rule, ...] = (
    _rule(
        "aws_key_id",
        r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
        Cue("AKIA", "[A-Z0-9]{16}"),
        Cue("ASIA", "[A-Z0-9]{16}"),
    ),
    _rule(
        "github_token",
        r"(?<![A-Za-z0-9])(?:gh[oprsu]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{22})",
        Cue("gh", "[oprsu]_"),
        Cue("g", "ithub_pat_"),
    ),
    _rule(
        "slack_token",
        r"(?<![A-Za-z0-9])(?:xox[abceoprs]|xapp)-[0-9][A-Za-z0-9-]{9}",
        Cue("xox", "[a-z]-[0-9]"),
        Cue("xapp-", "[0-9]"),
    ),
    # A long run with a digit, or dashes and all three kinds of characters: no slug has that.
    _rule(
        "api_key",
        r"(?<![A-Za-z0-9])sk-(?:[a-z]{2,8}-)?"
        r"(?:(?=[A-Za-z]{0,40}[0-9])[A-Za-z0-9]{20}"
        r"|(?=[A-Za-z_-]{0,40}[0-9])(?=[a-z0-9_-]{0,40}[A-Z])(?=[A-Z0-9_-]{0,40}[a-z])"
        r"[A-Za-z0-9_-]{20})",
        Cue("sk-", "[A-Za-z0-9_-]{20}"),
    ),
    _rule("stripe_key", r"(?<![A-Za-z0-9])[rs]k_live_[A-Za-z0-9]{16}", "k_live_"),
    _rule("google_key", r"(?<![A-Za-z0-9_-])AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])", "AIza"),
    _rule(
        "azure_key",
        r"(?:AccountKey|SharedAccessKey)=[A-Za-z0-9+/]{40}",
        Cue("Key=", "[A-Za-z0-9+/]{40}"),
    ),
    _rule(
        "jwt",
        r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,2048}\.[A-Za-z0-9_-]{8,8192}\.[A-Za-z0-9_-]{8}",
        Cue("eyJ", "[A-Za-z0-9_-]{8}"),
    ),
    _rule(
        "private_key",
        r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,4}PRIVATE KEY",
        Cue("-----BEGIN ", "[A-Z0-9]"),
    ),
    _rule(
        "bearer_token",
        r"(?<![a-z0-9])bearer\s{1,8}(?=[a-z._~+/=-]{0,64}[0-9])[a-z0-9._~+/=-]{20}",
        "bearer",
        folded=True,
    ),
    _rule(
        "url_password",
        rf"://{_USERINFO}{{0,64}}:(?!{_HARMLESS}@){_USERINFO}{{1,128}}@",
        Cue("://", rf"{_USERINFO}{{0,64}}:{_USERINFO}{{1,128}}@"),
        folded=True,
    ),
    _rule(
        "assignment",
        rf"(?:(?:{'|'.join(_SECRET_NAMES)}|(?<![a-z0-9_-])token) ?=|api-key:) ?{_VALUE}",
        *map("".join, product(_SECRET_ENDS, ("=", " ="))),
        "api-key:",
        folded=True,
    ),
    _rule(
        "key_name",
        rf"^(?!\s*{_HARMLESS}\s*$)\s*\S",
        *(f'{name}":"' for name in _SECRET_NAMES),
        folded=True,
        under=_SECRET_NAMES,
    ),
)


def _luhn(text: str) -> bool:
    digits = [int(char) for char in reversed(text) if char.isdigit()]
    doubled = (sum(divmod(digit * 2, 10)) for digit in digits[1::2])
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _iban(text: str) -> bool:
    compact = text.replace(" ", "")
    moved = compact[4:] + compact[:4]
    return int("".join(str(int(char, 36)) for char in moved)) % 97 == 1


def _checked(name: str, pattern: str, accept: Callable[[str], bool], tail: str) -> Rule:
    """Make a rule without a literal; its tail starts with one character, where `re` is quick."""
    return Rule(name, re.compile(pattern), (Cue("", tail),), accept=accept)


PERSONAL_DATA: tuple[Rule, ...] = (
    _rule(
        "email",
        r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@"
        r"(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9])",
        Cue("@", "[A-Za-z0-9-]"),
    ),
    _rule(
        "phone",
        r"(?<![A-Za-z0-9+])\+[1-9](?:[ -]?[0-9]){7,14}(?![0-9])",
        Cue("+", "[1-9](?:[ -]?[0-9]){7}"),
    ),
    _checked(
        "card",
        r"(?<![A-Za-z0-9.-])(?:(?:2[2-7]|[3-6][0-9])[0-9]{11,17}"
        r"|(?:2[2-7]|[3-6][0-9])[0-9]{2}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{4}"
        r"|3[47][0-9]{2}([ -])[0-9]{6}\2[0-9]{5})(?![A-Za-z0-9-])",
        _luhn,
        r"[0-9][0-9]{3}(?:[0-9]{9}|[ -][0-9]{4}[ -][0-9]{4}|[ -][0-9]{6}[ -][0-9]{5})",
    ),
    _checked(
        "iban",
        r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?"
        r"(?![A-Za-z0-9])",
        _iban,
        r"[A-Z][A-Z][0-9]{2} ?[A-Z0-9]{4} ?[A-Z0-9]{4}",
    ),
    _rule(
        "us_ssn",
        r"(?<![A-Za-z0-9-])(?!000|666|9)[0-9]{3}-(?!00)[0-9]{2}-(?!0000)[0-9]{4}(?![A-Za-z0-9-])",
        Cue("-", "[0-9]{2}-[0-9]{4}"),
    ),
)

# Section T2, word for word; frozen.
TRACE_SUBSTRINGS = (
    *("Bearer ", "xoxb-", "xoxp-", "xoxa-", "xoxr-", "sk-"),
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "-----BEGIN", "AKIA", "ASIA"),
    *("api_key=", "apikey=", "api-key:", "password=", "passwd=", "secret=", "token="),
)
TRACES: tuple[Rule, ...] = tuple(
    _rule(each, re.escape(each.lower()), each.lower(), folded=True) for each in TRACE_SUBSTRINGS
)
