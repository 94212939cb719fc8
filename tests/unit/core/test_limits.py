"""The limits of a log, and the errors above them."""

from typing import Any

import msgspec
import pytest

from seriatim.core.errors import InvalidArgument, LimitExceeded
from seriatim.core.limits import DEFAULT_LIMITS, Limits


def test_the_defaults() -> None:
    """K3: the contract's numbers."""
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
def test_every_bound(name: Any) -> None:
    """K3: at the bound it passes, over it the error names bound and value."""
    limits = Limits(**{name: 7})
    limits.check(name, 7)

    with pytest.raises(LimitExceeded) as caught:
        limits.check(name, 8)

    assert caught.value.details == {"limit": name, "bound": 7, "actual": 8}
    assert name in caught.value.message
    assert not caught.value.retryable


def test_pages() -> None:
    """E3: a page size lies between 1 and the maximum, and is a whole number."""
    limits = Limits(page=5)
    assert [limits.check_page("limit", size) for size in (1, 5)] == [1, 5]
    for wrong in (0, -1, 6, True, "1", 1.0, None):
        with pytest.raises(InvalidArgument) as caught:
            limits.check_page("batch_size", wrong)
        assert caught.value.details == {"argument": "batch_size", "maximum": 5}
