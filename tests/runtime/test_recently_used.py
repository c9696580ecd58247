"""The bounded mapping behind the caches of a call."""

from blockbuster_fusion.runtime.recently_used import RecentlyUsed


def test_the_least_recently_used_entry_is_dropped() -> None:
    cache = RecentlyUsed[str](2)
    cache.put("a", "A")
    cache.put("b", "B")
    assert cache.get("a") == "A"  # now "b" is the oldest
    cache.put("c", "C")
    assert cache.values() == ["A", "C"]
    assert cache.get("b") is None


def test_a_known_key_drops_nothing() -> None:
    cache = RecentlyUsed[int](2)
    for key, value in (("a", 1), ("b", 2), ("a", 3)):
        cache.put(key, value)
    assert len(cache) == 2
    assert cache.get("a") == 3
    cache.clear()
    assert "a" not in cache
