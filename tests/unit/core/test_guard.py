"""The guards: refused values, reported paths, and the prefilter."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seriatim.core.canonical import canonical_text
from seriatim.core.guard import (
    BUILT_IN_GUARDS,
    DEFAULT_GUARD,
    PERSONAL_GUARD,
    Guard,
    Literal,
    PatternGuard,
    Rule,
    ScannedEvent,
    Violation,
    find_first_violation,
)
from seriatim.profiles.trace_rules import TRACE_SUBSTRINGS, TRACES_GUARD

# Written in parts, so that secret scanners do not report this file.
CREDENTIALS = [
    ("aws_key_id", "AKIA", "IOSFODNN7EXAMPLE"),
    ("aws_key_id", "(ASIA", "IOSFODNN7EXAMPLE)"),
    ("github_token", "ghp", "_" + "a1" * 18),
    ("github_server", "ghs", "_" + "a1" * 18),
    ("github_fine_grained", "github", "_pat_" + "a1" * 11),
    ("slack_token", "xoxb", "-123456789012-abcdef"),
    ("slack_app_token", "xapp", "-1-A0123456789"),
    ("api_key", "sk", "-" + "a1B2" * 12),
    ("api_key", "key=(sk", "-" + "a1" * 10),
    ("openai_project_key", "sk", "-proj-" + "a1B2-_" * 8),
    ("anthropic_key", "sk", "-ant-api03-" + "aB-c_9" * 15),
    ("api_key", "task-sk", "-" + "a1B2" * 12),
    ("stripe_key", "sk", "_live_" + "a1" * 12),
    ("stripe_key", "rk", "_live_" + "a1" * 12),
    ("google_key", "AI", "za" + "a1B2-" * 7),
    ("azure_key", "AccountName=x;AccountKey", "=" + "a1B/" * 20 + "=="),
    ("jwt", "eyJhbGciOiJIUzI1NiJ9.", "eyJzdWIiOiIxIn0.c2lnbmF0dXJl"),
    ("private_key", "-----BEGIN ", "PRIVATE KEY-----\nMIIE"),
    ("private_key", "-----BEGIN ", "RSA PRIVATE KEY-----"),
    ("private_key", "-----BEGIN ", "PGP PRIVATE KEY BLOCK-----"),
    ("bearer_token", "Authorization: Bearer ", "abcdef0123456789abcdef"),
    ("bearer_token", "BEARER\n", "abcdef0123456789abcdef"),
    ("url_password", "postgres://me:", "hunter2@db/shop"),
    ("url_password", "redis://:", "hunter2@db"),
    ("assignment", "password=", "hunter2"),
    ("assignment", "?api_key=", "abcd1234&page=2"),
    ("assignment", "CLIENT_SECRET = ", "'abcd1234'"),
    ("assignment", "token=", "abcdef"),
    ("assignment", "access_token=", "abcdef"),
    ("assignment", "X-Api-Key: ", "12345678"),
    ("assignment", "password: ", "x"),
    ("assignment", "Password: ", "correct-horse\nuser: ann"),
    ("assignment", "Server=db;Uid=ann;Pwd=", "hunter2;"),
    ("assignment", '{"password": "', 'x"}'),
    ("assignment", '{"a": "{\\"api_key\\": \\"', 'abcd1234\\"}"}'),
    ("assignment", "<add key='ClearTextPassword' value='", "hunter22' />"),
    ("basic_auth", "Authorization: Basic ", "dXNlcjpwYXNzd29yZA=="),
    ("azure_sas", "https://x.blob.core.windows.net/c?sv=1&sig=", "a1%2B" * 10),
    ("slack_webhook", "https://hooks.slack.com/services/", "T0000/B0000/" + "a1" * 12),
]
PERSONAL_DATA = [
    ("email", "ann.lee+shop@example.com"),
    ("email", "write to jürgen@example.co.uk."),
    ("phone", "+41791234567"),
    ("phone", "call +1 415-555-2671"),
    ("card", "4111111111111111"),
    ("card", "card 4111 1111 1111 1111"),
    ("card", "3782-822463-10005"),
    ("iban", "DE89370400440532013000"),
    ("iban", "GB82 WEST 1234 5698 7654 32"),
    ("us_ssn", "078-05-1120"),
]
ORDINARY = [
    "",
    "task-42",
    "Asia/Tokyo",
    "risk-sk-1",
    "task-12345678901234567890",
    "0192f0c1-7d2e-7c3b-9d1a-3b1f6c2a9e10",
    "sk-123e4567-e89b-12d3-a456-426614174000",
    "sha256:" + "ab" * 32,
    "d41d8cd98f00b204e9800998ecf8427e",
    "secret_version_id",
    "secret_version_id=3",
    "sk-learn-pipeline-for-house-prices",
    "xoxo-lots-of-love-and-kisses",
    "-----BEGIN CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----",
    "bearer of responsibilities and obligations",
    "the bearer token is missing",
    "eyJust.a.word",
    "password=",
    "password=***",
    "password=[redacted]",
    "password=<removed>, user=ann",
    "password: must have 8 characters",
    "password == other",
    "token=$TOKEN",
    "secret=${VAULT_SECRET}",
    "api_key=REDACTED&page=2",
    "page_token=abcdefgh",
    "monkey=banana",
    "https://example.com/?q=1&key=2",
    "postgres://me@db/shop",
    "postgres://me:***@db/shop",
    "postgres://me:REDACTED@db/shop",
    "http://example.com:80/a@b",
    "task-sk-learn-Model-v2-Final-Report",
    "https://example.com/orders?page=2&token=1234",
    "https://example.com/orders?token=20240101",
    "basic authentication is disabled",
    "Basic abcdefghi is odd",
    "Basic dXNlcjpwYXNzd is odd",
    "Password: required",
    "the secret: management",
]
NOT_PERSONAL = [
    "a@b",
    "@ann",
    "package@1.2.3",
    "2025-01-01T00:00:00+02:00",
    "+1 more",
    "4111111111111112",
    "NO291234 5678",  # a right checksum, and too short for any country
    "1735689600000",
    "1735689600000000",
    "41111111-1111-1111-1111-111111111111",
    "DE89370400440532013001",
    "000-12-3456",
    "666-12-3456",
    "123-45-6789-0",
    "git@github.com:o/r.git",
    "ssh://git@host.example.com/o/r.git",
    "user@host.internal:/srv",
    "https://ann@example.com/o/r",
    "left-pad@1.3.0.beta",
    "left-pad@1.beta",
]
TELLING = ["password", "DB_PASSWORD", "passwd", "clientSecret", "client_secret", "apiKey"]
TELLING += ["api-key", "private_key", "access_token", "refreshToken", "secret"]
NOT_TELLING = ["secret_version_id", "password_hash", "key", "tokens", "page_token", "keys"]
REDACTED = ["", " ", "***", "****", "••••", "[redacted]", "[FILTERED]", "<removed>", "REDACTED"]
REDACTED += ["${DB_PASSWORD}", "{{ password }}", "vault:shop/db", "arn:aws:secretsmanager:x", "n/a"]


def scanned_event(payload: Any = None, **others: Any) -> ScannedEvent:
    """Return an event as a guard scans it."""
    return ScannedEvent(payload, canonical_text(payload), **others)


@pytest.mark.parametrize(("rule", "head", "tail"), CREDENTIALS)
def test_credentials_are_refused(rule: str, head: str, tail: str) -> None:
    """K1: the default guard finds credentials at any depth, with rule and path."""
    secret = head + tail

    assert Violation(rule, "$.a.b[1]") == DEFAULT_GUARD.scan(
        scanned_event({"a": {"b": ["x", secret]}})
    )
    assert Violation(rule, "$.a") == DEFAULT_GUARD.scan(
        scanned_event({"a": f'see:\n{secret}"\tand on'})
    )


@pytest.mark.parametrize("text", ORDINARY + NOT_PERSONAL)
def test_ordinary_strings_pass(text: str) -> None:
    """K1: strings that only resemble credentials are accepted."""
    assert DEFAULT_GUARD.scan(scanned_event({"a": text, text: ["b"]}, tags=(text,))) is None


@pytest.mark.parametrize(("rule", "text"), PERSONAL_DATA)
def test_personal_data_is_opt_in(rule: str, text: str) -> None:
    """K1: personal data is refused only with the personal-data rules."""
    assert DEFAULT_GUARD.scan(scanned_event({"a": text})) is None
    assert Violation(rule, "$.a") == PERSONAL_GUARD.scan(scanned_event({"a": text}))


@pytest.mark.parametrize("text", ORDINARY + NOT_PERSONAL)
def test_strings_that_resemble_personal_data_pass(text: str) -> None:
    """K1: numbers and ids that fail a checksum or range are accepted by the personal-data rules."""
    assert PERSONAL_GUARD.scan(scanned_event({"a": text})) is None


def test_the_personal_guard_finds_credentials() -> None:
    """K1: the personal-data rules come on top of the default ones."""
    assert PERSONAL_GUARD.scan(scanned_event({"a": "AKIA" + "IOSFODNN7EXAMPLE"})) == Violation(
        "aws_key_id", "$.a"
    )


@pytest.mark.parametrize("key", TELLING)
def test_values_under_secret_keys_are_refused(key: str) -> None:
    """K1: a value under a key that names a secret is refused."""
    assert DEFAULT_GUARD.scan(scanned_event({key: "x"})) is not None
    assert DEFAULT_GUARD.scan(scanned_event([{"deep": {key: "correct horse"}}])) is not None


@pytest.mark.parametrize("value", [None, True, [], {}, [None], {"min": 8}, *REDACTED])
@pytest.mark.parametrize("key", TELLING)
def test_secret_keys_without_a_secret_pass(key: str, value: Any) -> None:
    """K1: under a key that names a secret a redaction, reference or state is accepted."""
    assert DEFAULT_GUARD.scan(scanned_event({key: value})) is None


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (123456, ""),
        (-1.5, ""),
        (["x"], "[0]"),
        ([None, [7]], "[1][0]"),
        ({"value": "x"}, ".value"),
        ({"name": "main", "current": {"is": "x"}}, ".current.is"),
    ],
)
@pytest.mark.parametrize("key", ["password", "client_secret", "access_token", "db_pwd"])
def test_values_of_any_type_are_refused(key: str, value: Any, path: str) -> None:
    """K1: numbers, lists and objects under a key that names a secret are refused."""
    assert DEFAULT_GUARD.scan(scanned_event({"a": {key: value}})) == Violation(
        "key_name", f"$.a.{key}{path}"
    )


@pytest.mark.parametrize(
    "payload",
    [
        {"reset_password": "requested"},
        {"resetPassword": "mail_sent"},
        {"forgot_password": "clicked"},
        {"has_password": 1},
        {"secret": {"secretName": "db-creds", "defaultMode": 420}},
        {"password": "2025-01-01T00:00:00Z"},
    ],
)
def test_states_and_references_pass(payload: Any) -> None:
    """K1: states of an action and names of secrets are accepted."""
    assert DEFAULT_GUARD.scan(scanned_event(payload)) is None


def test_a_secret_under_an_action_key_is_refused() -> None:
    """K1: a secret under a key that names an action is refused."""
    assert DEFAULT_GUARD.scan(scanned_event({"reset_password": "hunter2"})) is not None


def test_plain_texts_are_scanned() -> None:
    """K1: a plain text is scanned like a string of an event."""
    assert DEFAULT_GUARD.rejects('he said "password=hunter2"\n')
    assert not DEFAULT_GUARD.rejects('he said "password"\n\\token=')


@pytest.mark.parametrize("key", NOT_TELLING)
def test_other_keys_pass(key: str) -> None:
    """K1: a value under a key that only contains the name of a secret is accepted."""
    assert DEFAULT_GUARD.scan(scanned_event({key: "x"})) is None


def test_secret_used_as_key_is_not_repeated() -> None:
    """K1: a secret used as an object key is refused, and the path does not contain it."""
    secret = "AKIA" + "IOSFODNN7EXAMPLE"

    assert DEFAULT_GUARD.scan(scanned_event({"a": [{secret: 1}]})) == Violation(
        "aws_key_id", "$.a[0].*"
    )


def test_paths_quote_odd_keys() -> None:
    """K1: the reported path quotes keys that are no identifiers."""
    found = DEFAULT_GUARD.scan(scanned_event({"odd key": {"password": "x"}}))

    assert found == Violation("key_name", '$["odd key"].password')


def test_any_json_value_is_scanned() -> None:
    """K1: payloads of any JSON type are scanned, also tuples."""
    assert DEFAULT_GUARD.scan(scanned_event("password=hunter2")) == Violation("assignment", "$")
    assert DEFAULT_GUARD.scan(scanned_event(("a", "password=hunter2"))) == Violation(
        "assignment", "$[1]"
    )
    assert DEFAULT_GUARD.scan(scanned_event(7)) is None


def test_deep_payloads_are_scanned() -> None:
    """K1: a value at depth 400 is found."""
    payload: Any = "password=hunter2"
    for _ in range(400):
        payload = [payload]

    assert DEFAULT_GUARD.scan(scanned_event(payload)) == Violation("assignment", "$" + "[0]" * 400)


@pytest.mark.parametrize("guard", BUILT_IN_GUARDS.values(), ids=BUILT_IN_GUARDS)
def test_fields_and_tags_are_scanned(guard: Guard) -> None:
    """T2: actor, source, correlation, causation, key and tags are scanned like the payload."""
    clean = (("actor_type", "agent"), ("actor_id", "a-1"))
    dirty = (*clean, ("idempotency_key", "password=hunter2"))
    tags = ("a", "b", "password=hunter2")

    assert guard.scan(scanned_event({}, fields=clean, tags=("a", "b"))) is None
    found = [
        guard.scan(scanned_event({}, fields=dirty)),
        guard.scan(scanned_event({}, fields=clean, tags=tags)),
    ]
    assert [v.path for v in found if v] == ["idempotency_key", "tags[2]"]


def test_metadata_is_scanned_by_default_and_not_in_traces() -> None:
    """T2: the default guard scans metadata with its keys, `traces-v1` does not."""
    dirty = scanned_event({}, metadata={"a": "b", "odd label": "password=hunter2"})
    named = scanned_event({}, metadata={"db_password": "x"})

    assert DEFAULT_GUARD.scan(dirty) == Violation("assignment", 'metadata["odd label"]')
    assert DEFAULT_GUARD.scan(named) == Violation("key_name", "metadata.db_password")
    assert TRACES_GUARD.scan(dirty) is None


def test_violations_contain_no_value() -> None:
    """K1: a violation has the rule and the path, never the value."""
    assert Violation.__struct_fields__ == ("rule", "path")


@pytest.mark.parametrize("substring", TRACE_SUBSTRINGS)
def test_each_frozen_substring_is_refused(substring: str) -> None:
    """T2: every listed substring is refused, in any case, anywhere in a string value."""
    for text in (substring, substring.upper(), f"x{substring.lower()}x"):
        assert TRACES_GUARD.scan(scanned_event({"a": [text]})) == Violation(substring, "$.a[0]")
        assert TRACES_GUARD.scan(scanned_event({}, tags=(text,))) == Violation(substring, "tags[0]")


def test_frozen_substrings_are_unchanged() -> None:
    """T2: the substrings are exactly those of the contract."""
    listed = "xoxb- xoxp- xoxa- xoxr- sk- ghp_ gho_ ghu_ ghs_ ghr_ -----BEGIN AKIA ASIA api_key="
    listed += " apikey= api-key: password= passwd= secret= token="

    assert ["Bearer ", *listed.split()] == list(TRACE_SUBSTRINGS)


def test_traces_scan_no_keys() -> None:
    """T2: a substring in an object key is no violation, and no path contains it."""
    assert TRACES_GUARD.scan(scanned_event({"sk-1": {"password=": 1}})) is None
    assert TRACES_GUARD.scan(scanned_event({"sk-1": ["token="]})) == Violation("token=", "$.*[0]")


def test_json_escapes_make_no_substring() -> None:
    r"""T2: JSON writes a tab before `oken=` as `\\token=`, which is no violation."""
    assert TRACES_GUARD.scan(scanned_event({"a": "\token="})) is None


def test_custom_rules() -> None:
    """K1: a guard can be built of custom rules; a rule without literals scans every string."""
    ticket = Rule("ticket", re.compile(r"\bT-[0-9]+"))
    badge = Rule("badge", re.compile(r"badge [0-9]+"), (Literal("badge "),), lowercase=True)
    guard = PatternGuard("mine", [ticket, badge])

    assert guard.scan(scanned_event({"a": ["no", "T-7"]})) == Violation("ticket", "$.a[1]")
    assert guard.scan(scanned_event({"a": "BADGE 7"})) == Violation("badge", "$.a")
    assert guard.scan(scanned_event({"a": "badge T"})) is None
    assert guard.may_reject([scanned_event({"a": "no"})]), "a batch must be scanned one by one"


def test_built_in_guards_have_names() -> None:
    """K1: the built-in guards are found by name."""
    assert {
        "traces-v1": TRACES_GUARD,
        "default": DEFAULT_GUARD,
        "personal": PERSONAL_GUARD,
    } == BUILT_IN_GUARDS


PIECES = [
    *(head + tail for _, head, tail in CREDENTIALS),
    *(text for _, text in PERSONAL_DATA),
    *ORDINARY,
    *REDACTED,
    *TRACE_SUBSTRINGS,
    *(text.lower() for text in TRACE_SUBSTRINGS),
    *TELLING,
    *('"', "\\", "\n", "\t", "oken=", "\u212a", "İ", "é", "a", " ", '":"', "x" * 20),
]
TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=4).map("".join)
CLEAN_TEXT = TEXT.filter(lambda text: "\0" not in text)
JSON = st.recursive(
    CLEAN_TEXT | st.none() | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(CLEAN_TEXT | st.sampled_from(TELLING), inner, max_size=3)
    ),
    max_leaves=6,
)
SCANNED = st.builds(
    lambda payload, fields, tags, metadata: scanned_event(
        payload, fields=tuple(fields), tags=tuple(tags), metadata=metadata
    ),
    JSON,
    st.lists(st.tuples(st.sampled_from(["actor_id", "source_system"]), CLEAN_TEXT), max_size=2),
    st.lists(CLEAN_TEXT, max_size=2),
    st.dictionaries(CLEAN_TEXT | st.sampled_from(TELLING), CLEAN_TEXT, max_size=2),
)


@settings(max_examples=200, deadline=None)
@given(SCANNED)
@pytest.mark.parametrize("guard", BUILT_IN_GUARDS.values(), ids=BUILT_IN_GUARDS)
def test_text_scan_equals_a_walk_over_strings(guard: PatternGuard, scanned: ScannedEvent) -> None:
    """K1: scanning the whole text refuses exactly the events that scanning each string refuses."""
    walked, found = guard.find_violation(scanned, guard.rules), guard.scan(scanned)
    assert (walked is None) == (found is None)


def _values(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _values(inner)


@settings(max_examples=200, deadline=None)
@given(SCANNED)
def test_traces_guard_equals_its_definition(scanned: ScannedEvent) -> None:
    """T2: an event is refused if and only if a value, tag or field has a listed substring."""
    texts = [*_values(scanned.payload), *scanned.tags, *(value for _, value in scanned.fields)]
    refused = any(each.lower() in text.lower() for text in texts for each in TRACE_SUBSTRINGS)

    assert refused == (TRACES_GUARD.scan(scanned) is not None)


@settings(max_examples=200, deadline=None)
@given(st.lists(SCANNED, min_size=2, max_size=4))
@pytest.mark.parametrize("guard", BUILT_IN_GUARDS.values(), ids=BUILT_IN_GUARDS)
def test_batch_scan_equals_a_scan_of_each_event(
    guard: PatternGuard, batch: list[ScannedEvent]
) -> None:
    """K1: one pass over a batch refuses the event that scanning one after another refuses first."""
    each = ((index, guard, guard.scan(event)) for index, event in enumerate(batch))
    first = next((found for found in each if found[2]), None)

    assert find_first_violation([(guard, event) for event in batch]) == first


@pytest.mark.parametrize(("rule", "head", "tail"), CREDENTIALS)
@pytest.mark.parametrize("at", [0, 1, 250, 499])
def test_a_credential_anywhere_in_a_batch_is_found(
    rule: str, head: str, tail: str, at: int
) -> None:
    """K1: a credential is found in any event of a batch longer than one chunk."""
    batch = [scanned_event({"a": "order 4711 of berth 3, " * 10, "n": n}) for n in range(500)]
    batch[at] = scanned_event({"a": head + tail}, tags=("t",))

    assert find_first_violation([(DEFAULT_GUARD, event) for event in batch]) == (
        at,
        DEFAULT_GUARD,
        Violation(rule, "$.a"),
    )


def test_the_events_of_a_batch_have_their_own_guards() -> None:
    """K1: each event of a batch is scanned by its guard, in the order of the batch."""
    key, mail = "AKIA" + "IOSFODNN7EXAMPLE", "jane@example.com"
    custom = PatternGuard("mine", [Rule("ticket", re.compile(r"\bT-[0-9]+"))])
    clean, with_mail, with_key = (scanned_event({"a": text}) for text in ("a", mail, key))
    scans: list[tuple[Guard, ScannedEvent]] = [
        (DEFAULT_GUARD, clean),
        (DEFAULT_GUARD, with_mail),
        (PERSONAL_GUARD, clean),
        (custom, clean),
        (custom, with_mail),
    ]

    assert find_first_violation(scans) is None
    found = find_first_violation([*scans, (PERSONAL_GUARD, with_mail), (DEFAULT_GUARD, with_key)])
    assert found == (5, PERSONAL_GUARD, Violation("email", "$.a"))


@pytest.mark.parametrize("guard", BUILT_IN_GUARDS.values(), ids=BUILT_IN_GUARDS)
@pytest.mark.parametrize("at", [0, 65_500, 65_530, 65_536, 66_000, 131_000, 199_000])
def test_long_texts_are_scanned_in_chunks(guard: Guard, at: int) -> None:
    """K1: a secret is found at any place of a long text."""
    secret = "AKIA" + "IOSFODNN7EXAMPLE"
    text = "-" * at + secret + "-" * (200_000 - at)

    assert guard.scan(scanned_event({"a": text})) is not None
    assert DEFAULT_GUARD.scan(
        scanned_event({"a": text.replace("-A", "xA"), "b": "y" * at + secret})
    ) == (None if at else Violation("aws_key_id", "$.a"))


@settings(max_examples=200, deadline=None)
@given(SCANNED, st.sampled_from([head + tail for _, head, tail in CREDENTIALS]))
@pytest.mark.parametrize("guard", [DEFAULT_GUARD, TRACES_GUARD], ids=lambda guard: guard.name)
def test_paths_contain_no_secret(guard: Guard, scanned: ScannedEvent, secret: str) -> None:
    """K1: the path of a violation contains no secret."""
    payload = {secret: {"a": secret, "b": scanned.payload}}
    found = guard.scan(scanned_event(payload))

    if found is not None:
        assert secret not in found.path


def test_a_guard_is_displayed_by_its_name() -> None:
    """The repr of a guard is its name, so that the help of `seriatim.open` stays readable."""
    assert repr(DEFAULT_GUARD) == f"<PatternGuard {DEFAULT_GUARD.name!r}>"
