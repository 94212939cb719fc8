"""Tokens of every family of the default guard are found, and prefixes alone are not."""

import random

import pytest

from seriatim.core.canonical import canonical_text
from seriatim.core.guard import DEFAULT_GUARD, ScannedEvent, Violation
from seriatim.core.guard_rules import CREDENTIALS
from tests.docs.pages import read, rows, section
from tests.unit.core.token_samples import TEMPLATES, fill_template, near_miss

NOT_FAMILIES = {"assignment", "key_name", "url_password"}
EACH = [(name, template) for name, templates in TEMPLATES.items() for template in templates]
SAMPLES = 20


def scan(text: str) -> Violation | None:
    """Scan a value of an ordinary event."""
    payload = {"note": ["first", text]}
    return DEFAULT_GUARD.scan(ScannedEvent(payload, canonical_text(payload)))


def test_every_rule_has_a_sample() -> None:
    """K1: the default guard has at least 130 families, each with a sample."""
    assert {rule.name for rule in CREDENTIALS} - NOT_FAMILIES == set(TEMPLATES)
    assert len(TEMPLATES) >= 130


@pytest.mark.parametrize(("name", "template"), EACH)
def test_samples_are_refused(name: str, template: str) -> None:
    """K1: tokens in the public format of a family are refused, alone and within a text."""
    chance = random.Random(name)
    for _ in range(SAMPLES):
        token = fill_template(template, chance)
        for text in (token, f"see {token}, please", f"a\n{token}\tb", f'{{"x": "{token}"}}'):
            assert scan(text) == Violation(name, "$.note[1]"), text


@pytest.mark.parametrize(("name", "template"), EACH)
def test_prefixes_pass(name: str, template: str) -> None:
    """K1: a prefix with too few characters after it is accepted."""
    del name
    assert scan(near_miss(template)) is None
    assert scan(f"see {near_miss(template)} in the documentation") is None


def test_the_documented_table_lists_every_rule() -> None:
    """K1: the table in the documentation lists every rule, and no other."""
    listed = {
        row[0].strip("`"): row[1]
        for row in rows(section(read("docs/howto/guard.md"), "Credentials"))
    }
    assert listed == {rule.name: rule.description for rule in CREDENTIALS}
