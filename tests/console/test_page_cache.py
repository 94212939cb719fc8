"""The cache of results that pages computed from events."""

from __future__ import annotations

from seriatim.console.page_cache import PageCache


def test_entries_are_bounded_by_number() -> None:
    """K3: the entry that was used least recently is evicted."""
    cache = PageCache(entries_max=2, weight_max=1000)
    cache.put("a", 1, 1)
    cache.put("b", 2, 1)
    assert cache.get("a") == 1
    cache.put("c", 3, 1)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_entries_are_bounded_by_weight() -> None:
    """K3: the weights of all entries stay below the bound, and a large entry is not kept."""
    cache = PageCache(entries_max=100, weight_max=80)
    for key in range(20):
        cache.put(key, key, 10)
        assert sum(10 for known in range(20) if cache.get(known) is not None) <= 80
    assert [cache.get(key) for key in (11, 12, 19)] == [None, 12, 19]
    cache.put("large", 0, 11)
    assert cache.get("large") is None
    cache.put(19, "again", 11)
    assert cache.get(19) is None
    cache.drop("unknown")
    cache.put(20, 20, 10)
    assert [cache.get(key) for key in (12, 20)] == [12, 20]
