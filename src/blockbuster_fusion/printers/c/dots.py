"""Plans dots: contractions that multiply in bfloat16, and the operands that lie in pairs for them.

Of a contraction's operands, the one in vectors lies in pairs along the sum (prelude_dots.py). A
block that is loaded for such contractions alone is loaded into pairs. Of another tile a copy is
made in pairs, before the outermost loop in which the tile does not change. The other operand is
read as it lies, in 16 bits if only dots use it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.product_types import NARROW, ProductTypes
from blockbuster_fusion.nest.nest import (
    Body,
    Cascade,
    Contract,
    For,
    Kernel,
    Load,
    Nest,
    Span,
    Statement,
    Tile,
    read,
    walk,
    written,
)
from blockbuster_fusion.printers.c.lanes import ContractionPlan


@dataclass(frozen=True, slots=True)
class DotRules:
    """The unit that multiplies bfloat16, and what may be rounded to be multiplied on it."""

    unit: str
    """One of `prelude_dots.UNITS`."""
    rounds: bool
    """True if all results are rounded to 16 bits: exponentials may be rounded too."""

    @staticmethod
    def of(nest: Nest, unit: str | None) -> "DotRules | None":
        """The rules for a program; None without a unit."""
        results = [view.buffer.dtype for view in nest.outputs]
        rounds = all(dtype in NARROW for dtype in results if dtype.is_float)
        return None if unit is None else DotRules(unit, rounds)


@dataclass(frozen=True, slots=True)
class Pairs:
    """An operand in pairs along a sum, in vectors along columns; its other axes come first."""

    tile: Tile
    span: Span
    columns: Span

    @property
    def outer(self) -> tuple[Span, ...]:
        return tuple(s for s in self.tile.spans if s not in (self.span, self.columns))


@dataclass
class DotPlan:
    """The dots of a kernel."""

    unit: str = ""
    """The unit that computes them, one of `prelude_dots.UNITS`."""
    operands: dict[Contract, Pairs] = field(default_factory=dict)
    """The operand in pairs of each contraction that is a dot."""
    loaded: dict[Tile, Pairs] = field(default_factory=dict)
    """The tiles that are loaded into pairs."""
    narrow: set[Tile] = field(default_factory=set)
    """The other tiles that are held in 16 bits."""
    copied: dict[Statement, list[Pairs]] = field(default_factory=dict)
    """The copies in pairs that are made before a statement."""
    few_rows: set[Contract] = field(default_factory=set)
    """The products with few rows that are dots."""

    @property
    def copies(self) -> list[Pairs]:
        return list(dict.fromkeys(pairs for some in self.copied.values() for pairs in some))


def contractions_in_bfloat16(kernel: Kernel, rules: DotRules) -> Iterator[Contract]:
    """The contractions of a kernel whose operands may be multiplied in bfloat16.

    Both lie in memory as such, or one is an exponential: sums of those do not cancel. Other numbers
    are not rounded, as their sums may be small.
    """
    types = ProductTypes(kernel)
    for statement in kernel.statements:
        if isinstance(statement, Contract) and types.of(statement) is DType.bfloat16:
            sides = (statement.left, statement.right)
            others = [side for side in sides if types.stored(side) is not DType.bfloat16]
            if not others or (rules.rounds and all(map(types.is_exponential, others))):
                yield statement


def planned_dots(
    kernel: Kernel, rules: DotRules, planned: Callable[[Contract], ContractionPlan | None]
) -> DotPlan:
    """The dots of a kernel; `planned` gives the roles in a contraction."""
    plan = DotPlan(rules.unit)
    for statement in contractions_in_bfloat16(kernel, rules):
        roles = planned(statement)
        if roles is not None and roles.vectors is not roles.broadcast:
            plan.operands[statement] = Pairs(roles.vectors, statement.span, roles.columns)
    _hold(plan, kernel, ProductTypes(kernel))
    for before, pairs in _copies(kernel.body, plan, ()):
        if pairs not in plan.copied.setdefault(before, []):
            plan.copied[before].append(pairs)
    return plan


def _hold(plan: DotPlan, kernel: Kernel, types: ProductTypes) -> None:
    """Notes the loaded tiles that only dots use, each in one way: in pairs, or as they lie."""
    statements = kernel.statements
    for tile in (s.tile for s in statements if isinstance(s, Load)):
        users = [s for s in statements if tile in read(s)]
        dots = [plan.operands[s] for s in users if isinstance(s, Contract) and s in plan.operands]
        ways = {pairs if pairs.tile is tile else None for pairs in dots}
        if len(types.makers[tile]) > 1 or len(dots) < len(users) or len(ways) != 1:
            continue
        (way,) = ways
        if way is not None and types.loads[tile] in (DType.bfloat16, DType.float32):
            plan.loaded[tile] = way
        elif way is None and types.loads[tile] is DType.bfloat16:
            plan.narrow.add(tile)


def _copies(
    body: Body, plan: DotPlan, around: tuple[For, ...]
) -> Iterator[tuple[Statement, Pairs]]:
    """The operands of which copies are made, each with the statement that it is made before."""
    for statement in body:
        if isinstance(statement, For):
            yield from _copies(statement.body, plan, (*around, statement))
        elif isinstance(statement, Cascade):
            yield from _copies(statement.body, plan, around)
        elif isinstance(statement, Contract) and statement in plan.operands:
            pairs = plan.operands[statement]
            if pairs.tile not in plan.loaded:
                yield _outermost(pairs.tile, around) or statement, pairs


def _outermost(tile: Tile, around: tuple[For, ...]) -> For | None:
    """The outermost of some loops in which a tile does not change."""
    changes = [any(written(s) is tile for s in walk(loop.body)) for loop in around]
    return next((loop for loop, changed in zip(around, changes, strict=True) if not changed), None)
