"""Cuts a model into parts, each of which is fused into one block program.

Front ends call a `Selection`. `Layerwise` is the policy until an exact one replaces it; it
looks at the kind of each operator alone:

- Parts stay in a region (a layer of the model, or the operators between two layers). On a GPU, a
  norm at the beginning of a layer goes with the sum that ends the layer before it, if PyTorch runs
  the product between.
- An operator joins the part that made its latest operand, if it may; else it begins a part.
- A pointwise operator may always. It does not if an operand has to lie in memory anyway, because
  a slice of it is read.
- A reduction may if the part has no product with a weight: norms go with what they normalise for,
  not with the product before them.
- A product with a weight may if no other product of the part comes before it: a norm with all the
  projections that read it, but not two layers of a perceptron. On a GPU it may not: statistics
  inside the loop of a product cost more than a pass over the rows. There it joins products of the
  same array with other weights, none of which depends on it: a launch may run the projections of
  queries, keys and values at the same time.
- A product of two computed arrays begins a part, but for the second of two, one of which makes an
  operand of the other: attention. Where only one side is computed, and by no product, it may join.
- A pointwise operator takes over a part that it alone reads, if that is one product of computed
  arrays: scores wait for a bias that is made after them. The two halves of a gated perceptron
  meet so as well. On a CPU, a part of products with weights takes over another product with a
  weight. On a GPU, a product takes over another one of the same array, with the norm before it if
  only these two read that: one kernel multiplies each block of rows with both weights.
- At last, a pointwise operator that only a later part reads moves there, if what it reads is stored
  anyway: half a norm does not stay behind.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

MOST_PRODUCTS = 8
"""The most products of one array in a part."""


class Kind(Enum):
    """Kinds of operators, by the relation of their results to their operands."""

    VIEW = "view"
    GENERATOR = "generator"
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    MISC = "misc"


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """An operator as a selection sees it.

    `operands` are the numbers of earlier operators, seen through views; what comes from outside is
    left out. Operators that are computed anew wherever they are needed do not appear.
    """

    kind: Kind
    operands: tuple[int, ...]
    region: str
    has_weight: bool = False
    """True if one operand of a contraction is a weight."""
    is_stored: bool = False
    """True if its result has to lie in memory: a slice of it, or a misc operator, reads it."""
    is_output: bool = False
    factors: frozenset[str] = frozenset()
    """The arrays that a contraction multiplies, seen through views, by name."""


class Selection(Protocol):
    """Cuts a model into parts."""

    def parts(self, operators: Sequence[OperatorInfo]) -> list[list[int]]:
        """The parts in an order in which they can be run; a misc operator is one of its own."""


@dataclass(frozen=True, slots=True)
class Layerwise:
    """The policy that this module describes."""

    apart: bool = False
    """True if every product with a weight begins a part, as on a GPU; a pointwise operator joins
    two of one array."""

    def parts(self, operators: Sequence[OperatorInfo]) -> list[list[int]]:
        """The parts in an order in which they can be run; a misc operator is one of its own."""
        return _Partition(operators, self.apart).parts()


class _Partition:
    """Parts in the making: a number for each operator, growing along every edge."""

    def __init__(self, operators: Sequence[OperatorInfo], apart: bool) -> None:
        self.operators, self.apart = operators, apart
        self.part: list[int] = []
        self.members: defaultdict[int, list[int]] = defaultdict(list)
        self.users: defaultdict[int, list[int]] = defaultdict(list)
        for i, op in enumerate(operators):
            for operand in op.operands:
                self.users[operand].append(i)
        self.count = 0

    def parts(self) -> list[list[int]]:
        for i, op in enumerate(self.operators):
            self.place(i, self.chosen(i, op))
            if op.kind is Kind.POINTWISE:
                self.fetch(i, op)
        for i in reversed(range(len(self.operators))):
            self.sink(i)
        return [sorted(members) for _, members in sorted(self.members.items()) if members]

    def place(self, i: int, part: int | None) -> None:
        if part is None:
            part, self.count = self.count, self.count + 1
        self.part.append(part)
        self.members[part].append(i)

    def chosen(self, i: int, op: OperatorInfo) -> int | None:
        """The part to join, or None for a new one."""
        if op.kind is Kind.MISC:
            return None
        latest = max((self.part[v] for v in op.operands), default=-1)
        from_latest = [v for v in op.operands if self.part[v] == latest]
        is_open = (
            bool(from_latest)
            and not any(self.operators[v].is_stored for v in from_latest)
            and self.may_join(i, op, latest)
        )
        if is_open:
            return latest
        if self.apart and op.kind is Kind.CONTRACTION:
            return self.products_beside(op, latest)
        last = self.last_with_kernels(latest)
        beside = op.kind is Kind.POINTWISE and latest < last and self.is_beside(op, last)
        return last if beside else None

    def products_beside(self, op: OperatorInfo, latest: int) -> int | None:
        """The part of products with weights that share an array with one that comes after `latest`.

        Neither depends on the other, so that one launch may run both.
        """
        for part in range(self.count - 1, latest, -1):
            members = [self.operators[v] for v in self.members[part]]
            products = [m for m in members if m.kind is Kind.CONTRACTION]
            kinds = {m.kind for m in members}
            if not products or kinds - {Kind.CONTRACTION, Kind.POINTWISE}:
                continue
            every = [op, *products]
            are_alike = all(m.has_weight for m in every) and members[0].region == op.region
            shared = frozenset.intersection(*(m.factors for m in every))
            if are_alike and shared and len(every) <= MOST_PRODUCTS:
                return part
        return None

    def last_with_kernels(self, before: int) -> int:
        """The last part that is no misc operator: nothing keeps what follows from going before."""
        found = range(self.count - 1, before, -1)
        kinds = ((p, self.operators[self.members[p][0]].kind) for p in found if self.members[p])
        return next((p for p, kind in kinds if kind is not Kind.MISC), before)

    def may_join(self, i: int, op: OperatorInfo, part: int) -> bool:
        members = [self.operators[v] for v in self.members[part]]
        if members[0].kind is Kind.MISC:
            return False
        if members[-1].region != op.region and not self.may_cross(op, part):
            return False
        products = [m for m in members if m.kind is Kind.CONTRACTION]
        match op.kind:
            case Kind.POINTWISE:
                return True
            case Kind.REDUCTION:
                return not any(m.has_weight for m in products)
            case Kind.CONTRACTION if op.has_weight and self.apart:
                return False
            case Kind.CONTRACTION if op.has_weight:
                before = self.before(i, part)
                return not any(self.operators[v].kind is Kind.CONTRACTION for v in before) and all(
                    m.has_weight for m in products
                )
        if not products:
            return len(set(op.operands)) == 1
        inner = [v for v in self.before(i, part) if self.operators[v].kind is Kind.CONTRACTION]
        return len(products) == 1 and len(inner) == 1 and not products[0].has_weight

    def may_cross(self, op: OperatorInfo, part: int) -> bool:
        """True if an operator may join a part of the region before its own: the end of that."""
        members = [self.operators[v] for v in self.members[part]]
        is_end = any(self.part[v] != part for m in members for v in m.operands)
        is_pointwise = all(m.kind is Kind.POINTWISE for m in members)
        joins = op.kind in (Kind.POINTWISE, Kind.REDUCTION)
        return self.apart and is_end and is_pointwise and joins

    def fetch(self, i: int, op: OperatorInfo) -> None:
        """Takes over the parts that only this operator's part reads, if they have one product."""
        own = self.part[i]
        for part in sorted({self.part[v] for v in op.operands} - {own}, reverse=True):
            products = [v for v in self.members[own] if self.operators[v].kind is Kind.CONTRACTION]
            if self.is_lone_product(part, own, op.region) and self.go_together(products, part):
                taken = self.members.pop(part)
                self.members[own] += taken
                for v in taken:
                    self.part[v] = own

    def go_together(self, products: Sequence[int], part: int) -> bool:
        """True if a lone product may be computed beside others: none, or all with weights."""
        (lone,) = (v for v in self.members[part] if self.operators[v].kind is Kind.CONTRACTION)
        if not products:
            return not self.operators[lone].has_weight
        every = [self.operators[v] for v in (*products, lone)]
        is_chain = any(lone in self.before(v, part, self.part[v]) for v in products)
        if self.apart:
            shared = frozenset.intersection(*(op.factors for op in every))
            return not is_chain and bool(shared)
        return not is_chain and all(op.has_weight for op in every)

    def is_lone_product(self, part: int, reader: int, region: str) -> bool:
        """True if a part is one product and what follows, and only one other part reads it.

        On a GPU a norm may come before the product.
        """
        members = self.members[part]
        kinds = [self.operators[v].kind for v in members]
        others = {*kinds} - {Kind.CONTRACTION, Kind.POINTWISE}
        allowed = {Kind.REDUCTION} if self.apart else set[Kind]()
        if kinds.count(Kind.CONTRACTION) != 1 or others - allowed:
            return False
        users = {self.part[u] for v in members for u in self.users[v] if u < len(self.part)}
        waiting = any(u >= len(self.part) for v in members for u in self.users[v])
        return (
            users <= {part, reader}
            and not waiting
            and not any(
                op.is_stored or op.is_output or op.region != region
                for op in (self.operators[v] for v in members)
            )
        )

    def is_beside(self, op: OperatorInfo, part: int) -> bool:
        """True if a part consists of pointwise operators of the same region."""
        members = [self.operators[v] for v in self.members[part]]
        return all(m.kind is Kind.POINTWISE and m.region == op.region for m in members)

    def before(self, i: int, *parts: int) -> set[int]:
        """The operators of some parts that an operator depends on."""
        found: set[int] = set()
        stack = [*self.operators[i].operands]
        while stack:
            v = stack.pop()
            if v not in found and self.part[v] in parts:
                found.add(v)
                stack.extend(self.operators[v].operands)
        return found

    def sink(self, i: int) -> None:
        """Moves an operator to the part of all its users, if that stores less."""
        op, own = self.operators[i], self.part[i]
        goals = {self.part[u] for u in self.users[i]}
        if op.kind is not Kind.POINTWISE or op.is_output or op.is_stored or len(goals) != 1:
            return
        (goal,) = goals
        target = self.operators[self.members[goal][0]] if self.members[goal] else None
        if goal == own or target is None or target.kind is Kind.MISC or target.region != op.region:
            return
        if all(self.leaves(v, own, but=i) for v in op.operands if self.part[v] == own):
            self.members[own].remove(i)
            self.part[i] = goal
            self.members[goal].append(i)

    def leaves(self, v: int, part: int, but: int) -> bool:
        """True if a value would be stored even without one of its users."""
        op = self.operators[v]
        outside = any(self.part[u] != part for u in self.users[v] if u != but)
        return op.is_output or op.is_stored or outside
