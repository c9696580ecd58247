"""A bounded mapping in memory, for results that depend on shapes and strides alone."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    used: int
    """The time of its last use, counted in lookups."""


class RecentlyUsed(Generic[V]):
    """A mapping that keeps the most recently used entries, up to a number of them.

    Threads may share one: no entry is wrong, and at worst a value is computed twice.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._time = 0
        self._entries: dict[Hashable, _Entry[V]] = {}

    def get(self, key: Hashable) -> V | None:
        """The value of a key, which then counts as used; None if there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.used = self._time = self._time + 1
        return entry.value

    def put(self, key: Hashable, value: V) -> None:
        """Adds an entry, and drops the least recently used ones beyond the bound."""
        while len(self._entries) >= self.most and key not in self._entries:
            # a copy, because another thread may add an entry meanwhile
            oldest, _ = min([*self._entries.items()], key=lambda item: item[1].used)
            self._entries.pop(oldest, None)
        self._time += 1
        self._entries[key] = _Entry(value, self._time)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> list[V]:
        """The values, in the order in which they were added."""
        return [entry.value for entry in [*self._entries.values()]]

    def clear(self) -> None:
        self._entries.clear()
