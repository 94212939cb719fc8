"""The error classes: unique codes, one shape, and pickling."""

import pickle
from typing import Any

import pytest

from seriatim.core import errors

RETRYABLE = {"projection_out_of_date", "projection_timeout", "timeout", "backend_failure"}


@pytest.mark.parametrize("kind", errors.ALL_ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_has_the_same_shape(kind: Any) -> None:
    """L1: every error has code, message, details and retryable; its docstring is its message."""
    error = kind()

    assert error.message == str(error) == kind.__doc__.strip()
    assert error.details == {}
    assert error.retryable is (error.code in RETRYABLE)
    assert error.as_dict() == {
        "code": kind.code,
        "message": error.message,
        "details": {},
        "retryable": error.retryable,
    }
    assert isinstance(error, errors.SeriatimError)


@pytest.mark.parametrize("kind", errors.ALL_ERRORS, ids=lambda kind: kind.__name__)
def test_errors_can_be_pickled(kind: Any) -> None:
    """L1: an error that was pickled has the same type, details and retryable."""
    error = kind("reported", details={"index": 3}, retryable=True)

    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert type(again) is kind
    assert again.as_dict() == error.as_dict()
    assert again.as_dict()["retryable"] is True


def test_the_docstring_lists_every_error() -> None:
    """L1: the module's docstring shows every class with its code."""
    for kind in errors.ALL_ERRORS:
        line = next(line for line in errors.__doc__.splitlines() if f" {kind.__name__} " in line)
        assert f" {kind.code}" in line
        assert ("(retryable" in line) == (
            kind.retryable_by_default or kind.code == "limit_exceeded"
        )


def test_conflicts_have_expected_and_actual_version() -> None:
    """D5: a conditional conflict has the expected and the actual version."""
    error = errors.ConditionalAppendConflict(details={"expected": 3, "actual": None})

    assert (error.expected, error.actual) == (3, None)
    assert errors.ConditionalAppendConflict().expected is None


def test_backend_failures_may_be_ambiguous() -> None:
    """B10: a backend failure says whether the append may be stored."""
    assert errors.BackendFailure(details={"ambiguous": True}).ambiguous
    assert not errors.BackendFailure().ambiguous
    assert not errors.BackendFailure(retryable=False).retryable


def test_validation_error_has_no_code() -> None:
    """L3: a validation error has a part and location, but no code."""
    flaw = errors.ValidationError("shape", "$.a", "is required")

    assert not isinstance(flaw, errors.SeriatimError)
    assert (str(flaw), flaw.part, flaw.location) == ("$.a: is required", "shape", "$.a")


@pytest.mark.parametrize(
    ("given", "expected"), [(None, 0.0), (1, 1.0), (0.25, 0.25), (-1, 0.0), ("soon", 0.0)]
)
def test_retry_after_is_read_from_the_details(given: object, expected: float) -> None:
    """K4: retry_after_s is read from the details if it is a valid duration."""
    assert errors.LimitExceeded(details={"retry_after_s": given}).retry_after_s == expected
