"""Contracts operators that are surely together, so that fewer sets of them are to be compared.

An array between two operators need not be stored if one of them may as well go to the part of the
other. Of two such operators, `maker` has no other reader than `reader`, and both are pointwise or
reductions. They are one unit if

- the reader has no other large operand, and its result is not larger than the maker's: it may as
  well be in the maker's part, or
- the maker has at most one large operand, and its result is not smaller than that: it may as well
  be in the reader's part, or
- the reader's unit reads all large operands of the maker anyway: a norm's statistics, and what is
  normalised.

Products stay alone, as PyTorch may run them. Nothing is contracted across the border of a
composite that one operator of a library computes.
"""

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from blockbuster_fusion.select.operators import Kind, Operator
from blockbuster_fusion.select.order import Order, bits, members

SMALL = 4
"""An operand is small if it has a quarter of the bytes of the result, or less."""
_FUSABLE = (Kind.POINTWISE, Kind.REDUCTION, Kind.GENERATOR)


@dataclass(frozen=True)
class Units:
    """Operators in units, each of which is in one part; units are in an order of running."""

    operators: tuple[Operator, ...]
    members: tuple[tuple[int, ...], ...]
    """The operators of each unit."""

    @cached_property
    def unit_of(self) -> dict[int, int]:
        """The unit of each operator."""
        return {i: n for n, own in enumerate(self.members) for i in own}

    @cached_property
    def order(self) -> Order:
        """The order of units."""
        return Order(
            [
                {self.unit_of[v] for i in own for v in self.operators[i].operands} - {n}
                for n, own in enumerate(self.members)
            ]
        )

    def operators_in(self, part: int) -> list[int]:
        """The operators of a set of units, in order."""
        return sorted(i for n in members(part) for i in self.members[n])

    def covering(self, operators: Iterable[int]) -> int:
        """The units that have some operators."""
        return bits(self.unit_of[i] for i in operators)

    def is_misc(self, unit: int) -> bool:
        return self.operators[self.members[unit][0]].kind is Kind.MISC


def contracted(operators: Sequence[Operator], composites: Iterable[Collection[int]] = ()) -> Units:
    """The units of some operators; `composites` are sets of operators that a library computes."""
    return _Contraction(operators, [frozenset(own) for own in composites]).units()


class _Contraction:
    """Units in the making."""

    def __init__(self, operators: Sequence[Operator], composites: Sequence[frozenset[int]]) -> None:
        self.operators = operators
        self.order = Order([op.operands for op in operators])
        self.own = [1 << i for i in range(len(operators))]
        """The members of each operator's unit."""
        self.large = set[int]()
        """The units of several operators."""
        self.inside: list[set[int]] = [set() for _ in operators]
        """The composites of each operator."""
        for n, own in enumerate(composites):
            for i in own:
                self.inside[i].add(n)
        self.number = {op.name: i for i, op in enumerate(operators)}

    def units(self) -> Units:
        changes = True
        while changes:
            changes = False
            for maker in reversed(range(len(self.operators))):
                changes |= self.contract(maker)
        found = sorted({*self.own}, key=lambda own: own.bit_length())
        return Units(tuple(self.operators), tuple(self.sorted(found)))

    def contract(self, i: int) -> bool:
        """Puts an operator's unit into the unit of its readers; True if that was done."""
        unit, op = self.own[i], self.operators[i]
        users = self.order.users[i]
        outside = users & ~unit
        if not outside or op.kind not in _FUSABLE or op.is_output or op.is_stored:
            return False
        reader = (outside & -outside).bit_length() - 1
        other = self.own[reader]
        if outside & ~other or not self.is_only_result(unit, i):
            return False
        readers = [self.operators[v] for v in members(outside)]
        if any(r.kind not in _FUSABLE for r in readers):
            return False
        if any(self.inside[v] != self.inside[i] for v in members(outside)):
            return False
        if not self.goes_with(unit, i, other) or not self.is_convex(unit | other):
            return False
        whole = unit | other
        for v in members(whole):
            self.own[v] = whole
        self.large -= {unit, other}
        self.large.add(whole)
        return True

    def is_only_result(self, unit: int, i: int) -> bool:
        """True if nothing outside reads another operator of a unit."""
        return not any(
            self.order.users[v] & ~unit
            or self.operators[v].is_output
            or self.operators[v].is_stored
            for v in members(unit & ~(1 << i))
        )

    def goes_with(self, unit: int, i: int, other: int) -> bool:
        """True if the operators of one unit may as well be in the part of its reader."""
        size = self.operators[i].bytes
        result = max(
            (
                self.operators[v].bytes
                for v in members(other)
                if self.order.users[v] & ~other or self.operators[v].is_output
            ),
            default=size,
        )
        name = self.operators[i].name
        theirs = {a: b for a, b in self.read(other).items() if a != name}
        if not any(b * SMALL > size for b in theirs.values()) and result <= size:
            return True
        own = {a: b for a, b in self.read(unit).items() if b * SMALL > size}
        if own.keys() <= theirs.keys():
            return True
        return len(own) <= 1 and all(b <= size for b in own.values())

    def read(self, unit: int) -> dict[str, int]:
        """The arrays that a unit reads from others, with their bytes; inputs are read anyway."""
        found: dict[str, int] = {}
        for v in members(unit):
            for read in self.operators[v].reads:
                maker = self.number.get(read.array)
                if maker is not None and not unit >> maker & 1:
                    found[read.array] = max(found.get(read.array, 0), read.bytes)
        return found

    def is_convex(self, whole: int) -> bool:
        """True if no other unit needs one operator of a set and is needed by another."""
        before, after = self.order.needed(whole), self.order.following(whole)
        return not before & after and not any(x & before and x & after for x in self.large)

    def sorted(self, units: Sequence[int]) -> list[tuple[int, ...]]:
        """The units in an order in which they can be run.

        Those that need no others come first, and one that nothing reads comes at once.
        """
        number = {v: n for n, own in enumerate(units) for v in members(own)}
        needs = [
            {number[v] for i in members(own) for v in members(self.order.operands[i])} - {n}
            for n, own in enumerate(units)
        ]
        users: list[list[int]] = [[] for _ in units]
        for n, own_needs in enumerate(needs):
            for v in own_needs:
                users[v].append(n)
        left = [len(own_needs) for own_needs in needs]
        ready = [(False, n) for n, count in enumerate(left) if not count]
        heapq.heapify(ready)
        found = []
        while ready:
            _, n = heapq.heappop(ready)
            found.append(tuple(members(units[n])))
            for user in users[n]:
                left[user] -= 1
                if not left[user]:
                    heapq.heappush(ready, (bool(users[user]), user))
        return found
