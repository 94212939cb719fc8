"""Tokens are looked up by prefix, and the types of events are scanned."""

import pytest

from seriatim.core.errors import PiiPolicyViolation
from seriatim.core.event import NewEvent
from seriatim.core.guard_scanner import TokenFinder, prefix_head, single_chunk
from seriatim.core.guard_tokens import TOKEN_FAMILIES
from seriatim.core.prepare import ValidationContext, prepare


@pytest.mark.parametrize(("prefix", "head"), [("ghp_", "ghp"), ("sk-", "sk"), ("AKIA", "AKI")])
def test_prefix_heads(prefix: str, head: str) -> None:
    """K1: a family is looked up by the first characters of its prefix."""
    assert prefix_head(prefix) == head


def test_a_prefix_must_start_with_a_letter_or_digit() -> None:
    """K1: a prefix that starts with another character is refused."""
    with pytest.raises(ValueError, match="must begin with a letter or digit"):
        prefix_head("_x")


def test_a_token_among_many_prefixes_is_found() -> None:
    """K1: a token is found in a text with the prefixes of all families."""
    find = TokenFinder(TOKEN_FAMILIES)
    decoys = " ".join(f"{family.prefixes[0]}{'.x' * 9}" for family in TOKEN_FAMILIES)

    assert find(single_chunk(decoys)) is None
    assert find(single_chunk(f"{decoys} npm_{'a1' * 18}")) == "npm_token"


@pytest.mark.parametrize("stream", [None, ("order", "o-1")])
def test_event_types_are_scanned_for_secrets(stream: tuple[str, str] | None) -> None:
    """K1: a secret as an event type is refused."""
    context = ValidationContext(tenant_id="t", new_id=lambda: "e-1")
    prepare(context, [NewEvent("order.placed", stream=stream)])

    with pytest.raises(PiiPolicyViolation) as caught:
        prepare(context, [NewEvent("AKIA" + "Q" * 16, stream=stream)])
    assert caught.value.details["path"] == "event_type"
