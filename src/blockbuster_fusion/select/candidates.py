"""Candidates: the sets of units that kernels may compute together, in windows of a model.

A candidate is connected and convex, and has no misc unit. It is grown from its least unit, by one
that is beside it and by all between. `Limits` says where growth ends. Products of one array are in
a part together, or each without the others and without what makes the array. Products with weights
are in no part with products of two computed arrays: projections with attention.

Equal layers have equal candidates. So units are numbered within *windows*: each begins where few
arrays are alive, as between two layers, and looks a little beyond the beginning of the next one.
Windows with equal digests have the same candidates with the same costs.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from blockbuster_fusion.select.constraints import Constraints
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.select.order import members, union
from blockbuster_fusion.select.units import Units


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the growth of candidates."""

    units: int = 16
    """The most units of a candidate."""
    products: int = 8
    """The most products of a candidate."""
    depth: int = 2
    """The most products of a candidate, each of which needs the one before."""
    beyond: int = 14
    """The units that a window looks beyond the beginning of the next one."""
    each: int = 4000
    """The most candidates of a window."""


READERS = 4
"""An array with that many readers is no border: all layers read the angles of an embedding."""
FAR = 64
"""The number of units before a window whose readers are looked at."""
NEAR, SHARING = 32, 6
"""Readers of one array are beside each other if they are near; of many, those that follow each
other are."""
SHORTEST = 5
"""The least units of a window, but for the last."""


Placing = tuple[int, int, str]
"""A candidate: its units in a window, the units that have to run before it, and its key."""
Following = tuple[list[Placing], int]
"""The candidates that may follow an ideal, and the number of those that were looked at."""


@dataclass(frozen=True)
class Window:
    """Some units that follow one another, with the candidates that begin there."""

    first: int
    """The number of the first unit, which is 0 in the window."""
    size: int
    """The units up to the beginning of the next window."""
    digest: str
    """All that the costs of the candidates depend on."""
    candidates: tuple[int, ...]
    """Sets of units, numbered from the window's first one."""
    needed: tuple[int, ...]
    """The units of the window that have to run before each candidate."""
    keys: tuple[str, ...]
    """All that the cost of each candidate depends on: equal ones of other windows have the same."""
    is_cut: bool = False
    """True if there are more candidates than the limits allow."""
    looks_ahead: bool = False
    """True if a candidate needs units of the next window, which are not always run before it."""

    @cached_property
    def by_least(self) -> dict[int, list[Placing]]:
        """The candidates by their least unit."""
        found: dict[int, list[Placing]] = {}
        for part, needed, key in zip(self.candidates, self.needed, self.keys, strict=True):
            found.setdefault((part & -part).bit_length() - 1, []).append((part, needed, key))
        return found

    @cached_property
    def following(self) -> dict[int, Following]:
        """The parts that may follow ideals, for ideals.py. A copy of the window has its own."""
        return {}

    @cached_property
    def needed_with(self) -> list[int]:
        """For each unit, all that candidates that have it need."""
        whole = union((*self.candidates, *self.needed, self.all))
        found = [0] * whole.bit_length()
        for part, needed in zip(self.candidates, self.needed, strict=True):
            for n in members(part):
                found[n] |= needed
        return found

    @cached_property
    def key_of(self) -> dict[int, str]:
        """The key of each candidate."""
        return dict(zip(self.candidates, self.keys, strict=True))

    @property
    def all(self) -> int:
        return (1 << self.size) - 1


def windows(
    units: Units,
    limits: Limits | None = None,
    constraints: Constraints | None = None,
    more: Sequence[int] = (),
) -> list[Window]:
    """The windows of a model; `more` are candidates that others than kernels can run."""
    return _Windows(units, limits or Limits(), constraints or Constraints(), more).all()


class _Windows:
    """Finds the windows of some units."""

    def __init__(
        self, units: Units, limits: Limits, constraints: Constraints, more: Sequence[int]
    ) -> None:
        self.units, self.limits, self.constraints = units, limits, constraints
        self.order, self.count = units.order, len(units.members)
        self.known: dict[str, Window] = {}
        self.misc = [units.is_misc(n) for n in range(self.count)]
        self.products = [_has_product(units, n) for n in range(self.count)]
        self.weighted = [units.operators[own[0]].has_weight for own in units.members]
        self.more: dict[int, list[int]] = {}
        for part in more:
            self.more.setdefault((part & -part).bit_length() - 1, []).append(part)
        self.beside = _beside(units)
        self.barred = _barred(units)

    def all(self) -> list[Window]:
        starts = [*self.starts(), self.count]
        return [self.window(a, b) for a, b in pairwise(starts)]

    def starts(self) -> Iterator[int]:
        """The units with which windows begin: one array alone is alive there."""
        users, operands = self.order.users, self.order.operands
        last = [max(own.bit_length() - 1, n) for n, own in enumerate(users)]
        early = union(1 << n for n in range(self.count) if not operands[n])
        is_long = [early >> n & 1 or own.bit_count() >= READERS for n, own in enumerate(users)]
        alive, start = set[int](), 0
        yield 0
        for n in range(self.count):
            alive = {v for v in alive if last[v] >= n}
            if len(alive) <= 1 and n - start >= SHORTEST:
                yield n
                start = n
            if last[n] > n and not is_long[n]:
                alive.add(n)

    def window(self, first: int, after: int) -> Window:
        end = min(self.count, after + self.limits.beyond)
        digest = self.digest(first, after, end)
        if digest not in self.known:
            found, is_cut = self.candidates(first, after, end)
            mask = (1 << (end - first)) - 1
            needed = [(self.order.needed(part << first) >> first) & mask for part in found]
            keys = [self.key(part << first) for part in found]
            looks_ahead = any(own >> (after - first) for own in needed)
            own = (tuple(found), tuple(needed), tuple(keys), is_cut, looks_ahead)
            self.known[digest] = Window(first, after - first, digest, *own)
        return replace(self.known[digest], first=first)

    def key(self, part: int) -> str:
        """The digest of a part: its operators, their edges, and the results that others read."""
        units, place = self.units, dict[str, int]()
        made = hashlib.sha256(str(self.constraints.may_hold(part)).encode())
        for n in members(part):
            is_read = bool(self.order.users[n] & ~part)
            for i in units.members[n]:
                op = units.operators[i]
                reads = [(place.setdefault(r.array, len(place)), r.bytes) for r in op.reads]
                place.setdefault(op.name, len(place))
                made.update(repr((op.form, reads, op.is_output or is_read)).encode())
        return made.hexdigest()

    def digest(self, first: int, after: int, end: int) -> str:
        """The digest of the units of a window, with their edges and constraints."""
        outside: dict[str, int] = {}
        place = {
            self.units.operators[i].name: (n - first, k)
            for n in range(first, end)
            for k, i in enumerate(self.units.members[n])
        }
        size = f"{after - first} {end - first} {self.constraints.within(first, end)}"
        made = hashlib.sha256(size.encode())
        for n in range(first, end):
            for i in self.units.members[n]:
                op = self.units.operators[i]
                reads = [
                    (place.get(r.array) or outside.setdefault(r.array, len(outside)), r.bytes)
                    for r in op.reads
                ]
                later = op.is_output or self.order.users[n].bit_length() > end
                made.update(repr((op.form, reads, op.bytes, op.is_stored, later)).encode())
            for part in self.more.get(n, ()):
                made.update(str(part >> first).encode())
            made.update(f"|{self.order.operands[n] >> first}|".encode())
        return made.hexdigest()

    def candidates(self, first: int, after: int, end: int) -> tuple[list[int], bool]:
        """The candidates that begin in a window, numbered from its first unit."""
        grown = _Growth(self, first, end)
        found: dict[int, None] = {}
        for n in range(after - first):
            for part in grown.all_from(n, self.limits.each - len(found)):
                found[part] = None
            for part in self.more.get(first + n, ()):
                found[part >> first] = None
        return [*found], grown.is_cut


class _Growth:
    """Grows candidates in a window; units are numbered from its first one."""

    def __init__(self, owner: _Windows, first: int, end: int) -> None:
        mask = (1 << (end - first)) - 1

        def within(sets: Sequence[int]) -> list[int]:
            return [(sets[n] >> first) & mask for n in range(first, end)]

        self.owner, self.first, self.limits = owner, first, owner.limits
        self.before, self.after = within(owner.order.before), within(owner.order.after)
        self.beside, self.barred = within(owner.beside), within(owner.barred)
        self.fusable = union(1 << n for n in range(end - first) if not owner.misc[first + n])
        self.products = [owner.products[n] for n in range(first, end)]
        self.weighted = [owner.weighted[n] for n in range(first, end)]
        self.groups = self._groups(end - first)
        self.is_cut = False

    def _groups(self, count: int) -> list[tuple[int, int]]:
        """The units that several products read, each with these products."""
        users, first = self.owner.order.users, self.first
        mask = union(1 << n for n in range(count) if self.products[n])
        found = []
        for n in range(max(0, first - FAR), first + count):
            own = users[n] >> first & mask
            if 1 < own.bit_count() <= self.limits.products:
                found.append((1 << n >> first if n >= first else 0, own))
        return found

    def is_complete(self, part: int) -> bool:
        """True if a part with two products of one array, or with one and the array, has all."""
        for maker, products in self.groups:
            held = (products & part).bit_count() + bool(maker & part)
            if held > 1 and products & part and products & ~part:
                return False
        return True

    def all_from(self, least: int, most: int) -> Iterator[int]:
        """The candidates whose least unit is one."""
        one = 1 << least
        yield one
        if not one & self.fusable:
            return
        higher = self.fusable & ~(2 * one - 1)
        # sets are grown with all that is before, after and beside their units
        stack = deque([(one, self.before[least], self.after[least], self.beside[least])])
        seen, count = {one}, 1
        while stack:
            part, before, after, beside = stack.popleft()
            for n in members(beside & higher & ~part):
                more_before, more_after = before | self.before[n], after | self.after[n]
                whole = part | 1 << n | more_before & more_after  # with all units between its own
                if whole in seen or whole & ~(higher | one):
                    continue
                seen.add(whole)
                if not self.is_allowed(whole):
                    continue
                if count >= most:
                    self.is_cut = True
                    return
                count += 1
                around = beside | union(self.beside[v] for v in members(whole & ~part))
                stack.append((whole, more_before, more_after, around))
                if self.is_complete(whole):
                    yield whole

    def is_allowed(self, part: int) -> bool:
        own = [*members(part)]
        if len(own) > self.limits.units or any(self.barred[n] & part for n in own):
            return False
        products = [n for n in own if self.products[n]]
        if len(products) > self.limits.products or len({self.weighted[n] for n in products}) > 1:
            return False
        depth: dict[int, int] = {}
        for n in products:
            depth[n] = 1 + max((depth[v] for v in depth if self.before[n] >> v & 1), default=0)
            if depth[n] > self.limits.depth:
                return False
        return self.owner.constraints.may_grow(part << self.first)


def _has_product(units: Units, n: int) -> bool:
    return any(units.operators[i].kind is Kind.CONTRACTION for i in units.members[n])


def _beside(units: Units) -> list[int]:
    """For each unit, its operands and users, and those that read an array that it reads.

    Of the latter, neither needs the other, and both are products or both are none.
    """
    order = units.order
    readers: dict[str, int] = {}
    for n, own in enumerate(units.members):
        for i in own:
            for read in units.operators[i].reads:
                readers[read.array] = readers.get(read.array, 0) | 1 << n
    products = union(1 << n for n in range(len(units.members)) if _has_product(units, n))
    found = []
    for n, own in enumerate(units.members):
        around = ((2 << NEAR) - 1) << n >> (NEAR // 2)
        shared = (readers[r.array] & around for i in own for r in units.operators[i].reads)
        near = union(x if x.bit_count() <= SHARING else _next_to(n, x) for x in shared)
        near &= products if products >> n & 1 else ~products
        near &= ~(order.before[n] | order.after[n])
        found.append((near | order.operands[n] | order.users[n]) & ~(1 << n))
    return found


def _next_to(n: int, readers: int) -> int:
    """The readers before and after a unit, of all that read an array with it."""
    below, above = readers & ((1 << n) - 1), readers >> (n + 1) << (n + 1)
    return (1 << below.bit_length() >> 1) | (above & -above)


def _barred(units: Units) -> list[int]:
    """For each unit, the units whose results it reads in memory: it is in no part with them."""
    found = [0] * len(units.members)
    for n, own in enumerate(units.members):
        for i in own:
            for v in units.operators[i].operands:
                if units.operators[v].is_stored and units.unit_of[v] != n:
                    found[n] |= 1 << units.unit_of[v]
    return found
