"""The errors of a profile use its own field names, and other errors are unchanged."""

import pytest

from seriatim.core.errors import BackendFailure, IdempotencyConflict, InvalidArgument
from seriatim.profiles.base import FieldNames

WORDS = FieldNames({"stream_seq": "trace_seq", "stream": "trace_id", "event_id": "record_id"})


def test_details_and_message_are_translated() -> None:
    """L3: message and details of an error use the profile's name of a field."""
    translated = WORDS.translate(
        InvalidArgument("event 0: stream_seq: is required", details={"field": "stream_seq"})
    )

    assert translated.message == "event 0: trace_seq: is required"
    assert translated.details == {"field": "trace_seq"}


def test_words_in_a_message_are_not_translated() -> None:
    """L3: a field name without an underscore is not translated within a message."""
    error = IdempotencyConflict("the stream was closed", details={"fields": ["stream", "tags"]})
    translated = WORDS.translate(error)

    assert translated.message == "the stream was closed"
    assert translated.details == {"fields": ["trace_id", "tags"]}


def test_only_the_subject_of_a_message_is_renamed() -> None:
    """L3: a field name that is an English word is translated as the subject of a message only."""
    words = FieldNames({"after": "since_log_seq", "types": "event_type"})
    translated = words.translate(
        InvalidArgument(
            "types end in a *, after a dot, as all types", details={"argument": "types"}
        )
    )

    assert translated.message == "event_type end in a *, after a dot, as all types"
    assert translated.details == {"argument": "event_type"}


def test_errors_without_fields_are_unchanged() -> None:
    """L1: an error without fields to translate is returned unchanged."""
    error = InvalidArgument("no", details={"argument": "timeout", "stored": 3})

    assert WORDS.translate(error) is error
    with pytest.raises(InvalidArgument) as caught, WORDS.translate_errors():
        raise error
    assert caught.value is error


def test_retryable_and_type_are_kept() -> None:
    """L1: a translated error has the same class and retryable flag."""
    translated = WORDS.translate(InvalidArgument("event_id is bad", retryable=True))

    assert (type(translated), translated.retryable) == (InvalidArgument, True)
    assert translated.message == "record_id is bad"


def test_backend_failures_are_unchanged() -> None:
    """L2: a backend failure, which appends of a group share, is not translated."""
    error = BackendFailure("stream_seq column is missing")
    with pytest.raises(BackendFailure) as caught, WORDS.translate_errors():
        raise error

    assert caught.value is error
    assert caught.value.message == "stream_seq column is missing"
