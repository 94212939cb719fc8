"""The limits of a log, and the errors of values over them."""

from typing import Any

import msgspec
import pytest

from seriatim.core.errors import InvalidArgument, LimitExceeded
from seriatim.core.limits import DEFAULT_LIMITS, Limits


def test_default_limits() -> None:
    """K3: the default limits are those of the contract."""
    mib = 1024 * 1024
    assert msgspec.structs.asdict(DEFAULT_LIMITS) == {
        "payload_bytes": mib,
        "payload_depth": 64,
        "integer_digits": 4300,
        "append_events": 10_000,
        "append_bytes": 16 * mib,
        "tags": 64,
        "tag_bytes": 256,
        "index_terms": 1000,
        "metadata_entries": 64,
        "metadata_bytes": 8192,
        "conditions": 64,
        "condition_filters": 256,
        "filters": 64,
        "predicates": 64,
        "predicate_values": 4096,
        "page": 10_000,
        "subscriptions": 10_000,
        "queue_events": 100_000,
        "queue_bytes": 256 * mib,
    }


@pytest.mark.parametrize("name", Limits.__struct_fields__)
def test_every_limit(name: Any) -> None:
    """K3: a value at the limit is accepted; one over it is refused with limit and value."""
    limits = Limits(**{name: 7})
    limits.check(name, 7)

    with pytest.raises(LimitExceeded) as caught:
        limits.check(name, 8)

    assert caught.value.details == {"limit": name, "bound": 7, "actual": 8}
    assert name in caught.value.message
    assert not caught.value.retryable


def test_page_sizes() -> None:
    """E3: a page size is an integer from 1 to the maximum."""
    limits = Limits(page=5)
    assert [limits.check_page("limit", size) for size in (1, 5)] == [1, 5]
    for wrong in (0, -1, 6, True, "1", 1.0, None):
        with pytest.raises(InvalidArgument) as caught:
            limits.check_page("batch_size", wrong)
        assert caught.value.details == {"argument": "batch_size", "maximum": 5}
