"""The order of operators, with sets of them as numbers: operator i is in a set if bit i is 1.

Operators are numbered so that operands come first. An *ideal* holds all operands of its members. A
part can be run at once if it is *convex*: no path leaves it and comes back.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property


class Order:
    """The operands of operators, and all that each needs before it can run."""

    def __init__(self, operands: Sequence[Iterable[int]]) -> None:
        """`operands` has the numbers of the operators whose results each operator reads."""
        self.operands = tuple(bits(own) for own in operands)
        for i, own in enumerate(self.operands):
            if own >> i:
                raise ValueError(
                    f"operator {i} reads operator {own.bit_length() - 1}: not before it"
                )
        self.before: list[int] = []
        """For each operator, those that it needs, its operands' operands too."""
        for own in self.operands:
            self.before.append(own | union(self.before[v] for v in members(own)))

    def __len__(self) -> int:
        return len(self.operands)

    @property
    def all(self) -> int:
        return (1 << len(self)) - 1

    @cached_property
    def users(self) -> list[int]:
        """For each operator, those that read its result."""
        found = [0] * len(self)
        for i, own in enumerate(self.operands):
            for v in members(own):
                found[v] |= 1 << i
        return found

    @cached_property
    def beside(self) -> list[int]:
        """For each operator, its operands, its users, and those that read one of its operands."""
        return [
            (own | self.users[i] | union(self.users[v] for v in members(own))) & ~(1 << i)
            for i, own in enumerate(self.operands)
        ]

    @cached_property
    def after(self) -> list[int]:
        """For each operator, those that need it."""
        found = [0] * len(self)
        for i in reversed(range(len(self))):
            for v in members(self.operands[i]):
                found[v] |= found[i] | 1 << i
        return found

    def following(self, part: int) -> int:
        """The operators outside a part that need one of it."""
        return union(self.after[i] for i in members(part)) & ~part

    def needed(self, part: int) -> int:
        """The operators outside a part that have to run before it."""
        return union(self.before[i] for i in members(part)) & ~part

    def is_convex(self, part: int) -> bool:
        """True if no operator outside a part needs one of it and is needed by another."""
        return not any(self.before[v] & part for v in members(self.needed(part)))

    def closed(self, part: int) -> int:
        """A part with all operators between its own."""
        return part | self.needed(part) & self.following(part)

    def ready(self, ideal: int) -> Iterator[int]:
        """The operators outside an ideal whose operands are all in it."""
        return (i for i in members(self.all & ~ideal) if not self.operands[i] & ~ideal)

    def in_order(self, parts: Iterable[int]) -> list[int] | None:
        """Parts in an order in which they can be run; None if they need each other."""
        left = [(part, self.needed(part)) for part in parts]
        done, found = 0, list[int]()
        while left:
            ready = next((x for x in left if not x[1] & ~done), None)
            if ready is None:
                return None
            left.remove(ready)
            found.append(ready[0])
            done |= ready[0]
        return found

    def is_partition(self, parts: Iterable[int]) -> bool:
        """True if the parts, one after the other, run each operator once and in order."""
        ideal = 0
        for part in parts:
            if part & ideal or self.needed(part) & ~ideal:
                return False
            ideal |= part
        return ideal == self.all


def bits(numbers: Iterable[int]) -> int:
    """The set with some members."""
    return union(1 << i for i in numbers)


def union(sets: Iterable[int]) -> int:
    found = 0
    for own in sets:
        found |= own
    return found


def members(some: int) -> Iterator[int]:
    """The members of a set, the least first."""
    while some:
        least = some & -some
        yield least.bit_length() - 1
        some ^= least


def connected_parts(order: Order, allowed: int, most: int) -> Iterator[int]:
    """The convex parts of at most `most` allowed operators, each beside another one of the part.

    Every connected set is grown once: from its least member, by members that are beside it. A
    neighbour that was passed over is not taken later.
    """
    for first in members(allowed):
        higher = allowed & ~((2 << first) - 1)
        stack = [(1 << first, order.beside[first] & higher, 0)]
        while stack:
            part, beside, passed = stack.pop()
            if order.is_convex(part):
                yield part
            if part.bit_count() == most:
                continue
            for i in members(beside & ~passed):
                own = 1 << i
                more = order.beside[i] & higher & ~(part | own)
                stack.append((part | own, (beside | more) & ~own, passed))
                passed |= own
