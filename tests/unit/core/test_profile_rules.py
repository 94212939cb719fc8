"""Profile rules: their requirements for an event, and the error code of each invalid part."""

from typing import Any

import pytest

from seriatim.core.errors import EventPart, ValidationError
from seriatim.core.profile_rules import LOG_PROFILE
from seriatim.profiles.aggregate_values import AGGREGATES_PROFILE
from seriatim.profiles.facts import FACTS_PROFILE
from seriatim.profiles.trace_rules import TRACES_PROFILE

CODES = {
    "log": ["invalid_event", "invalid_event", "invalid_event", "schema_violation"],
    "facts": ["invalid_event"] * 4,
    "aggregates": ["invalid_event", "invalid_event", "invalid_event", "schema_violation"],
    "traces": ["invalid_argument", "invalid_argument", "schema_violation", "schema_violation"],
}


@pytest.mark.parametrize(
    "profile",
    [LOG_PROFILE, FACTS_PROFILE, AGGREGATES_PROFILE, TRACES_PROFILE],
    ids=lambda profile: profile.name,
)
def test_error_codes_of_profiles(profile: Any) -> None:
    """L3: invalid parts of an event have the error codes of the profile."""
    parts: tuple[EventPart, ...] = ("envelope", "json", "payload", "shape")
    found = [profile.error(ValidationError(part, "$.x", "is wrong"), 4) for part in parts]

    assert [error.code for error in found] == CODES[profile.name]
    assert all(error.details == {"index": 4, "field": "$.x"} for error in found)
    assert found[0].message == "event 4: $.x: is wrong"


def test_required_fields_of_profiles() -> None:
    """A7: facts require no fields, aggregates a stream, a request id and an actor."""
    assert (LOG_PROFILE.required, FACTS_PROFILE.required) == ((), ())
    assert AGGREGATES_PROFILE.required == ("stream", "request_id", "actor_type", "actor_id")
    assert AGGREGATES_PROFILE.actor_types == ("user", "service_principal", "system")
    assert [
        profile.any_payload
        for profile in (LOG_PROFILE, FACTS_PROFILE, AGGREGATES_PROFILE, TRACES_PROFILE)
    ] == [0, 1, 0, 0]
    assert [
        profile.log_sets_time
        for profile in (LOG_PROFILE, FACTS_PROFILE, AGGREGATES_PROFILE, TRACES_PROFILE)
    ] == [0, 1, 0, 0]
    assert [
        profile.keys_are_unique
        for profile in (LOG_PROFILE, FACTS_PROFILE, AGGREGATES_PROFILE, TRACES_PROFILE)
    ] == [1, 1, 0, 1]
