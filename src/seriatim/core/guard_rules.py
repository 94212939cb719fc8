"""The rules of the guards: credentials and personal data.

The patterns of built-in rules search flat text (see `flat_text`), in which `"` ends a string, `'`
is a quote within one, U+0001 is a backslash and a line break is any control character. No pattern
crosses a `"`. Each begins with a literal, which `re` finds quickly, is bounded in length, and is
possessive where it repeats, so that checking an occurrence costs a bounded number of steps.
"""

from __future__ import annotations

import binascii
import re
import typing
from collections.abc import Callable

import msgspec

from seriatim.core.guard_scanner import Literal, TextChunk, single_chunk, tree_pattern
from seriatim.core.guard_tokens import TOKEN_FAMILIES, TokenFamily

Scope = typing.Literal["string", "flat", "pair", "token"]
Match = re.Match[str]


class Rule(msgspec.Struct, frozen=True):
    """A rule for strings that must not be stored.

    Attributes:
        name: The name of the rule in errors.
        pattern: The pattern of a violation.
        literals: Literals of which one occurs in the lower-case text of every match. They let the
            guard skip the rule quickly; without them the rule runs on every string.
        lowercase: Whether the pattern is applied to the text in lower case.
        accept: A function that confirms a match, for example with a checksum.
        scope: What the pattern is applied to: a decoded `string` (custom rules), `flat` text, a
            key and value `pair` (`key":"value"`), or a `token` with a known prefix.
        description: What the rule finds, for documentation.
        family: The token family of a rule with scope `token`.
    """

    name: str
    pattern: re.Pattern[str]
    literals: tuple[Literal, ...] = ()
    lowercase: bool = False
    accept: Callable[[Match], bool] | None = None
    scope: Scope = "string"
    description: str = ""
    family: TokenFamily | None = None

    def matches(self, text: str) -> bool:
        """Return whether the rule matches a text."""
        return self.matches_in(single_chunk(text.lower() if self.lowercase else text))

    def matches_in(self, chunk: TextChunk) -> bool:
        """Return whether the rule matches in a chunk, which must be lower case if `lowercase`."""
        if self.accept is None:
            match = self.pattern.search(chunk.text, chunk.begin)
            return match is not None and match.start() < chunk.end
        return any(
            match.start() < chunk.end and self.accept(match)
            for match in self.pattern.finditer(chunk.text, chunk.begin)
        )


def _rule(
    name: str,
    description: str,
    pattern: str,
    *literals: str | Literal,
    lowercase: bool = False,
    accept: Callable[[Match], bool] | None = None,
    scope: Scope = "flat",
) -> Rule:
    all_literals = tuple(
        literal if isinstance(literal, Literal) else Literal(literal) for literal in literals
    )
    return Rule(name, re.compile(pattern), all_literals, lowercase, accept, scope, description)


def _token_rule(family: TokenFamily) -> Rule:
    return Rule(
        family.name,
        re.compile(family.pattern),
        scope="token",
        description=family.description,
        family=family,
    )


_STATES = [
    "redacted",
    "filtered",
    "masked",
    "hidden",
    "removed",
    "omitted",
    "encrypted",
    "hashed",
    "protected",
    "n/a",
    "null",
    "none",
    "nil",
    "undefined",
    "unknown",
    "empty",
    "default",
    "true",
    "false",
    "yes",
    "no",
    "on",
    "off",
    "ok",
    "set",
    "unset",
    "missing",
    "required",
    "optional",
    "invalid",
    "valid",
    "incorrect",
    "wrong",
    "weak",
    "strong",
    "expired",
    "changed",
    "rotated",
    "reset",
    "requested",
    "pending",
    "sent",
    "done",
    "completed",
    "complete",
    "failed",
    "failure",
    "success",
    "successful",
    "enabled",
    "disabled",
    "active",
    "inactive",
    "updated",
    "created",
    "deleted",
    "revoked",
    "forgotten",
    "accepted",
    "rejected",
    "confirmed",
    "skipped",
    "started",
    "stored",
    "generated",
    "verified",
    "mismatch",
    "string",
    "text",
    "password",
    "secret",
]


_STORES = (
    *("arn", "vault", "env", "kms", "ref", "file", "secretref", "op", "ssm", "sm", "gcp", "azure"),
    *("sha256", "bcrypt"),
)
_REFERENCE = r""":[^\s"]{0,256}+"""
_WORD = tree_pattern(
    [*((name, _REFERENCE) for name in _STORES), *((state, "") for state in _STATES)]
)

# Values that are not secrets although their key names one: masks, placeholders, references to
# secret stores, and states. Each branch begins with one character or set, so that `re` excludes it
# before it enters the branch.
_BRACES = r"""\{\{?[^}"{]{0,32}+\}{1,2}"""
_HARMLESS = (
    r"""(?:[*•x.…#-][*•x.…#-]{1,63}+|\[[^\]"\[]{0,32}+\]|<[^>"<]{0,32}+>"""
    rf"""|{_BRACES}|\$(?:{_BRACES}|\(?[a-z0-9_.]{{1,64}}+\)?)|%[a-z0-9_]{{1,64}}+%"""
    r"""|[0-9][0-9]{3}-[0-9]{2}-[0-9]{2}(?:[t ][0-9:.,+z-]{0,32}+)?"""
    rf"""|{_WORD})"""
)
# White space by code points: `re` tests a set without `\s` with a bitmap, which is faster.
_SPACE = r"\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_STOP = rf"""(?![^{_SPACE}"'&;,)}}\]\x01])"""
_NOT_HARMLESS = rf"(?!{_HARMLESS}{_STOP})"
_CHAR = rf"""[^{_SPACE}"'&;,=\x01(){{}}\[\]<>]"""
_NO_DIGIT = rf"""[^{_SPACE}"'&;,=\x01(){{}}\[\]<>:0-9]"""
_QUOTES = r"['\x01]{0,8}+"
_PLAIN_CHAR = rf"""[^{_SPACE}"'&;,=\x01(){{}}\[\]<>:]"""
_END_OF_VALUE = rf"{_STOP}(?![ \t]+[a-z])"
_DIGITS = rf"(?={_NO_DIGIT}{{0,32}}+[0-9]){_CHAR}{{6}}"
# `name: value` also occurs in prose: an unquoted value must end its line or contain a digit. A word
# that is followed by `:` or `=` is the next name.
_PLAIN = (
    rf"(?!{_NO_DIGIT}{{0,32}}+['\x01]{{0,8}}+[:=])"
    rf"(?:{_PLAIN_CHAR}{{1,128}}+{_END_OF_VALUE}|{_DIGITS})"
)


def _assignment_pattern(equals: str, colon: str) -> str:
    """Return the pattern of an assignment after a name: `equals` after `=`, `colon` after `:`."""
    # Each branch begins with a different character, so that `re` enters few of them.
    return (
        rf"{_QUOTES}(?::(?:={equals}|{colon})|=>?+{equals}"
        rf"|[ \t](?::{colon}|[ \t]?+(?::=|=>?+){equals}))"
    )


def _value_pattern(shortest: int, plain: str) -> str:
    """Return the pattern of an assigned value: after `=`, in quotes, or unquoted after `:`.

    The form of the value is checked before the list of harmless values, because it is cheaper.
    """
    value = rf"(?={_CHAR}{{{shortest}}})"
    equals = rf"[ \t]{{0,2}}+{_QUOTES}{value}"
    colon = rf"\s{{0,4}}+(?:(?={plain})|['\x01]{{1,8}}+{value})"
    return _assignment_pattern(equals, colon) + _NOT_HARMLESS


_KEY_NAMES = (
    *("private", "api", "secret", "secret_access", "access", "signing", "encryption", "master"),
    *("account", "shared_access", "storage", "auth", "service_account"),
)
_TOKEN_NAMES = (
    *("access", "auth", "refresh", "session", "api", "bearer", "bot", "deploy", "private"),
    *("security", "personal_access", "id", "user", "service", "client", "admin", "app"),
)


def _lookbehind_pattern(names: tuple[str, ...], last: str, between: str = "") -> str:
    """Return a lookbehind for `last` after one of the names, in four spellings.

    The first part of the pattern excludes most other words by the one or two characters before
    `last`. `between` is checked before the second part, which costs most.
    """
    spellings = dict.fromkeys(
        name.replace("_", joint) + joint + last for name in names for joint in ("_", "-", "", " ")
    )
    widths: dict[int, list[str]] = {}
    for spelling in spellings:
        widths.setdefault(len(spelling), []).append(re.escape(spelling))
    ends = f"[{''.join(sorted({name[-1] for name in names}))}]"
    likely = f"(?:(?<={ends}{last})|(?<={ends}[_ -]{last}))"
    exact = "|".join(f"(?<={'|'.join(names_of_width)})" for names_of_width in widths.values())
    return f"{likely}{between}(?:{exact})"


_KEYS = _lookbehind_pattern(_KEY_NAMES, "key", '(?=":)')
_TOKENS = _lookbehind_pattern(_TOKEN_NAMES, "token", '(?=":)')
_KEYS_IN_JSON = _lookbehind_pattern(_KEY_NAMES, 'key":')
_TOKENS_IN_JSON = _lookbehind_pattern(_TOKEN_NAMES, 'token":')
_ATTRIBUTE = (  # <add key='password' value='...'>
    rf"['\x01]{{1,8}}+\s{{1,4}}+value\s?=\s?['\x01]{{1,8}}+{_NOT_HARMLESS}{_CHAR}{{4}}"
)
_ASSIGNED = rf"(?={_value_pattern(4, _DIGITS)})"
_PASS_NAMES = ("password", "passwd", "passphrase")
_PASS = "pass(?:word|wd|phrase)"  # noqa: S105 - a pattern
# The sign of an assignment after the name.
_SIGN = r"(?:[:=]|[ \t][ \t]?+[:=]|['\x01]['\x01]{0,7}+[ \t]{0,2}+[:=])"
_PASS_LITERALS = tuple(Literal(name, _SIGN) for name in _PASS_NAMES)
_LONG = rf"(?={_NO_DIGIT}{{0,40}}+[0-9]){_CHAR}{{20}}"
_BARE_TOKEN = "(?<![a-z0-9_.-]token)" + _assignment_pattern(
    rf"[ \t]{{0,2}}+{_QUOTES}(?={_CHAR}{{6}})(?![0-9]{{1,20}}{_STOP})"
    rf"(?:(?<![?&]token=)|(?={_LONG})){_NOT_HARMLESS}",
    rf"\s{{0,4}}+['\x01]{{1,8}}+(?={_LONG}){_NOT_HARMLESS}",
)

# A value under a key: a string that is not harmless, a number, or a non-empty array or object.
_VALUE = rf'":(?:"(?!\s{{0,64}}+(?:{_HARMLESS}\s{{0,64}}+)?")|-?[0-9]|[\[{{](?![\]}}]))'
_STATE = re.compile(r'"?[a-z]{1,24}(?:[ _-][a-z]{1,24}){0,4}"|[0-9]{1,2}(?![0-9.])|"[0-9]{1,2}"')
_VERBS = (
    *("reset", "forgot", "forgotten", "change", "changed", "update", "rotate", "expire", "require"),
    *("requires", "has", "is", "needs", "need", "must", "show", "hide", "use", "no", "without"),
    *("missing", "wrong", "invalid", "by", "via", "with", "lost"),
)


def _is_secret_name(match: Match) -> bool:
    """Return False for a key about an action (`reset_password`) whose value is its state."""
    text, start = match.string, match.start()
    before = text[max(0, start - 16) : start].rstrip("_- ")
    if not before.endswith(_VERBS):
        return True
    return _STATE.match(text, match.end() - 1) is None


def _key_rule(pattern: str, *literals: Literal) -> Rule:
    return _rule(
        "key_name",
        "a value under a key that ends in `password`, `secret`, `api_key`, `access_token` and the "
        "like; masks, placeholders, references and states pass",
        pattern + _VALUE,
        *literals,
        lowercase=True,
        accept=_is_secret_name,
        scope="pair",
    )


def _assignment_rule(pattern: str, *literals: Literal) -> Rule:
    return _rule(
        "assignment",
        "`password=…`, `Pwd=…`, `password: …`, `token=…` and JSON with such keys in a text",
        pattern,
        *literals,
        lowercase=True,
    )


def _is_basic_auth(match: Match) -> bool:
    """Return whether the word after `Basic` is a user name and a password in base64."""
    word = match.group(1)
    if len(word) % 4 == 1:
        return False
    decoded = binascii.a2b_base64(word + "=" * (-len(word) % 4))
    return b":" in decoded and decoded.isascii() and decoded.decode().isprintable()


# Base64 of ASCII text, by groups of four characters, up to a colon as first, second or third byte.
_ASCII_1, _ASCII_2, _ASCII_3 = "[I-Za-f]", "[A-HQ-Xg-nw-z0-3]", "[ABEFIJMNQRUVYZcdghklopstwx014589]"
_COLON = (
    rf"(?=(?:{_ASCII_1}{_ASCII_2}{_ASCII_3}[A-Za-z0-9+/]){{0,128}}?"
    rf"(?:O[g-v]|{_ASCII_1}[DTjz][o-r]|{_ASCII_1}{_ASCII_2}[AEIMQUYcgkosw048]6))"
)
_USERINFO = r"""[^\s"'\x01/@:\x00-\x1f\x7f]"""
_B64 = "[A-Za-z0-9+/]"
_W = "[A-Za-z0-9_-]"

CREDENTIALS: tuple[Rule, ...] = (
    *map(_token_rule, TOKEN_FAMILIES),
    _rule(
        "slack_token",
        "Slack bot, user, workspace, configuration and refresh tokens",
        r"xox(?<![A-Za-z0-9]xox)(?:[bceops]-[0-9][A-Za-z0-9-]{9}|[ar]-(?:[0-9]-)?[A-Za-z0-9]{8}"
        r"|e\.xox[bp]-[0-9]-[A-Za-z0-9]{20})",
        Literal("xox", "[a-z][.-]"),
    ),
    _rule(
        "slack_app_token",
        "Slack app tokens",
        r"xapp-(?<![A-Za-z0-9]xapp-)[0-9][A-Za-z0-9-]{9}",
        Literal("xapp-", "[0-9]"),
    ),
    _rule(
        "slack_webhook",
        "Slack webhook addresses",
        rf"hooks\.slack\.com/(?:services|workflows|triggers)/{_B64}{{24}}",
        "hooks.slack.com/",
    ),
    _rule(
        "teams_webhook",
        "Microsoft Teams webhook addresses",
        r"webhook\.office\.com/webhookb2/[A-Za-z0-9-]{36}",
        "webhook.office.com/",
    ),
    _rule(
        "discord_webhook",
        "Discord webhook addresses",
        rf"/api/webhooks/[0-9]{{17,20}}+/{_W}{{60}}",
        "api/webhooks/",
    ),
    _rule(
        "private_key",
        "private keys in PEM, OpenSSH, PGP and SSH2 form",
        r"begin (?:(?<=-begin )|(?<=- begin ))(?:[a-z0-9]{1,16}+ ){0,4}?private key",
        Literal("begin ", "(?:[a-z0-9]{1,16}+ ){0,4}?private key"),
        lowercase=True,
    ),
    _rule(
        "putty_key",
        "PuTTY key files",
        r"putty-user-key-file-[0-9]",
        "putty-user-key-file-",
        lowercase=True,
    ),
    _rule(
        "bearer_token",
        "`Bearer` and a token",
        r"bearer(?<![a-z0-9]bearer)\s{1,8}+(?=[a-z._~+/=-]{0,64}+[0-9])[a-z0-9._~+/=-]{20}",
        Literal("bearer", r"\s{1,8}+[a-z0-9._~+/=-]{20}"),
        lowercase=True,
    ),
    _rule(
        "basic_auth",
        "`Authorization: Basic` and a name with its password",
        rf"asic (?<=[Bb]asic )(?<![A-Za-z0-9].asic ) {{0,3}}+{_COLON}([A-Za-z0-9+/]{{6,512}}+)",
        Literal("basic ", r" {0,3}[a-z0-9+/]{6}"),
        accept=_is_basic_auth,
    ),
    _rule(
        "url_password",
        "a password in a URL",
        rf"://{_USERINFO}{{0,64}}+:(?!{_HARMLESS}@){_USERINFO}{{1,128}}+@",
        Literal("://", rf"{_USERINFO}{{0,64}}+:{_USERINFO}{{1,128}}+@"),
        lowercase=True,
    ),
    _rule(
        "azure_key",
        "Azure storage and shared access keys",
        rf"Key=(?:(?<=AccountKey=)|(?<=SharedAccessKey=)){_B64}{{40}}",
        Literal("key=", "[a-z0-9+/]{40}"),
    ),
    _rule(
        "azure_sas",
        "Azure shared access signatures",
        r"sig=(?<=[?&]sig=)[A-Za-z0-9%+/_-]{40}",
        Literal("sig=", "[a-z0-9%+/_-]{40}"),
    ),
    _rule(
        "gitlab_session",
        "GitLab session cookies",
        r"_gitlab_session=[0-9a-z]{32}",
        Literal("_gitlab_session=", "[0-9a-z]{32}"),
    ),
    _rule(
        "azure_client_secret",
        "Azure AD client secrets",
        r"Q~(?<=[A-Za-z0-9_~.]{3}[0-9]Q~)[A-Za-z0-9_~.-]{31}",
        Literal("q~", "[a-z0-9_~.-]{31}"),
    ),
    _rule(
        "bedrock_key",
        "long-lived Amazon Bedrock keys",
        rf"ABSK(?<![A-Za-z0-9]ABSK){_B64}{{100}}",
        Literal("absk", "[a-z0-9+/]{100}"),
    ),
    _rule(
        "facebook_token",
        "Facebook app access tokens",
        rf"\|(?<=[0-9]{{15}}\|){_W}{{27}}",
        Literal("|", "[a-z0-9_-]{27}"),
    ),
    _rule(
        "flyio_macaroon",
        "Fly.io macaroon tokens",
        rf"fm(?<![A-Za-z0-9]fm)(?:1[ar]|2)_{_B64}{{60}}",
        *(Literal(start, "[a-z0-9+/]{60}") for start in ("fm2_", "fm1a_", "fm1r_")),
    ),
    _rule(
        "grafana_cloud_token",
        "Grafana Cloud tokens",
        rf"glc_(?<![A-Za-z0-9]glc_){_B64}{{32}}",
        Literal("glc_", "[a-z0-9+/]{32}"),
    ),
    _rule(
        "mailgun_key",
        "Mailgun keys after its name",
        r"""mailgun[a-z_. ]{0,24}+[^"\na-z0-9]{0,8}+(?:pub)?key-[0-9a-f]{32}""",
        "mailgun",
        lowercase=True,
    ),
    _rule(
        "onepassword_token",
        "1Password service account tokens",
        rf"ops_eyJ(?<![A-Za-z0-9]ops_eyJ){_B64}{{200}}",
        "ops_eyj",
    ),
    _rule(
        "sentry_org_token",
        "Sentry organization tokens",
        rf"sntrys_eyJ{_B64}{{40}}",
        "sntrys_eyj",
    ),
    _rule(
        "telegram_token",
        "Telegram bot tokens after its name",
        r"""telegr[a-z_./ -]{0,24}+[^"\na-z0-9]{0,8}+[0-9]{5,16}+:a[a-z0-9_-]{34}""",
        "telegr",
        lowercase=True,
    ),
    _assignment_rule(
        rf"{_PASS}(?:{_value_pattern(1, _PLAIN)}|{_ATTRIBUTE})",
        *_PASS_LITERALS,
        Literal("password", r"['\x01]{1,8}+\s{1,4}+value"),
    ),
    _assignment_rule(rf"pwd(?<![a-z0-9]pwd){_value_pattern(1, _PLAIN)}", Literal("pwd", _SIGN)),
    _assignment_rule("secret" + _value_pattern(4, _DIGITS), Literal("secret", _SIGN)),
    _assignment_rule(
        "key" + _lookbehind_pattern(_KEY_NAMES, "key", _ASSIGNED), Literal("key", _SIGN)
    ),
    _assignment_rule(
        f"token(?:{_lookbehind_pattern(_TOKEN_NAMES, 'token', _ASSIGNED)}|{_BARE_TOKEN})",
        Literal("token", _SIGN),
    ),
    _key_rule(_PASS, *(Literal(name + '":') for name in _PASS_NAMES)),
    _key_rule("pwd", Literal('pwd":')),
    _key_rule("secret", Literal('secret":')),
    _key_rule(f"key{_KEYS}", Literal('key":', _KEYS_IN_JSON)),
    _key_rule(f"token{_TOKENS}", Literal('token":', _TOKENS_IN_JSON)),
)


_DIGIT_VALUES = bytes((code - ord("0")) % 10 for code in range(256))
_DOUBLED_DIGIT_SUMS = bytes(sum(divmod(code % 10 * 2, 10)) for code in range(256))
_LETTER_VALUES = {ord(char): str(int(char, 36)) for char in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_IBAN_CHARS_MIN = 15  # characters, Norway's


def _passes_luhn(match: Match) -> bool:
    digits = match.group().encode().translate(_DIGIT_VALUES, b" -")
    return (sum(digits[-1::-2]) + sum(digits[-2::-2].translate(_DOUBLED_DIGIT_SUMS))) % 10 == 0


def _passes_iban(match: Match) -> bool:
    compact = match.group().replace(" ", "")
    if len(compact) < _IBAN_CHARS_MIN:
        return False
    return int((compact[4:] + compact[:4]).translate(_LETTER_VALUES)) % 97 == 1


# The dotted numbers of `package@1.3.0.beta`, and the last parts that mark a pre-release.
_VERSION_NUMBERS = re.compile(r"(?:v?[0-9]{1,10}\.)+")
_STAGES = ("alpha", "beta", "rc", "dev", "pre", "next", "canary", "snapshot", "final", "post")
_SCHEME_CHARS = 80  # how far before the @ a scheme is searched


def _is_email(match: Match) -> bool:
    """Return False for `git@host:path`, `ssh://git@host/` and `package@1.3.0.beta`."""
    text, start = match.string, match.start()
    labels, last = match.group(1, 2)
    if _VERSION_NUMBERS.fullmatch(labels) and (
        labels.count(".") > 1 or last.lower().startswith(_STAGES)
    ):
        return False
    before = text[max(0, start - _SCHEME_CHARS) : start]
    scheme = before.rfind("://")
    if scheme >= 0 and not set(before[scheme + 3 :]) & set(" \"'/<>,;\n"):
        return False
    return not before.endswith("git") or before[-4:-3].isalnum()


PERSONAL_DATA: tuple[Rule, ...] = (
    _rule(
        "email",
        "e-mail addresses",
        r"@(?<=[A-Za-z0-9_%+-]@)((?:[A-Za-z0-9-]{1,63}+\.){1,8})([A-Za-z]{2,24}+)"
        r"(?![A-Za-z0-9_/-]|:[^\s\"'])",
        Literal("@", r"[a-z0-9-]{1,63}+\."),
        accept=_is_email,
    ),
    _rule(
        "phone",
        "phone numbers with a leading +",
        r"\+(?<![A-Za-z0-9+]\+)[1-9](?:[ -]?[0-9]){7,14}+(?![0-9])",
        Literal("+", "[1-9](?:[ -]?[0-9]){7}"),
    ),
    _rule(
        "card",
        "payment card numbers with a right checksum",
        r"[2-6](?<![A-Za-z0-9.-].)(?:(?<=2)[2-7]|(?<!2)[0-9])(?:[0-9]{11,17}+"
        r"|[0-9]{2}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{4}"
        r"|(?<=3[47])[0-9]{2}([ -])[0-9]{6}\2[0-9]{5})(?![A-Za-z0-9-])",
        accept=_passes_luhn,
    ),
    _rule(
        "iban",
        "IBANs with a right checksum",
        r"[A-Z](?<![A-Za-z0-9].)[A-Z][0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?"
        r"(?![A-Za-z0-9])",
        accept=_passes_iban,
    ),
    _rule(
        "us_ssn",
        "US social security numbers",
        r"-(?<=[0-9]{3}-)(?<![A-Za-z0-9-][0-9]{3}-)(?<!000-)(?<!666-)(?<!9[0-9]{2}-)"
        r"(?!00)[0-9]{2}-(?!0000)[0-9]{4}(?![A-Za-z0-9-])",
        Literal("-", "[0-9]{2}-[0-9]{4}"),
    ),
)

# Suffixes of keys that describe a secret, inside an object under a key that names one.
DESCRIPTIVE_SUFFIXES = (
    *("name", "id", "ref", "type", "kind", "version", "path", "mode", "namespace", "optional"),
    *("required", "length", "min", "max", "_at", "edat", "sat", "expires", "expiry", "count"),
    *("enabled", "algorithm", "policy", "status", "state", "format", "provider", "engine"),
)
