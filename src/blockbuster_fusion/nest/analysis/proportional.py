"""Proof that the summands of a loop are proportional to e^-t, for a running exponent t.

The degree of a tile is the power of e^-t that it is proportional to. A product adds degrees, a sum
needs equal ones, and any other function needs degree 0.
"""

from collections.abc import Sequence

from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.expr import Expr, postorder
from blockbuster_fusion.nest.nest import (
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Load,
    Lookup,
    Positions,
    Statement,
    Store,
    Tile,
    read,
    walk,
    written,
)


class _NotProportional(Exception):
    """A tile depends on t otherwise than as a multiple of a power of e^-t."""


_ZERO = None
"""The degree of 0, which is proportional to anything."""


def proportional(
    block: Sequence[Statement], t: Tile, summands: Sequence[Tile], base: str = "exp"
) -> bool:
    """True if t only scales the summands: each is proportional to e^-t, or to 2^-t."""
    if not any(written(s) is t for s in block):
        return False
    degrees = _Degrees(t, base)
    try:
        for statement in walk(tuple(block)):
            degrees.visit(statement)
    except _NotProportional:
        return False
    return all(degrees.of(tile) in (1, _ZERO) for tile in summands)


class _Degrees:
    """The power of e^-t, or of 2^-t, to which each tile is proportional."""

    def __init__(self, t: Tile, base: str) -> None:
        self.t, self.base = t, base
        self.known: dict[Tile, int | None] = {}
        self.there = False

    def of(self, tile: Tile) -> int | None:
        return self.known.get(tile, 0)

    def visit(self, statement: Statement) -> None:
        if written(statement) is self.t:
            self.there = True
            return
        match statement:
            case Fill():
                self.known[statement.tile] = _ZERO if statement.value == 0 else 0
            case Compute():
                degree = self.expr(statement.expr, statement.operands)
                known = self.known.get(statement.tile, _ZERO)
                self.known[statement.tile] = self.same(degree, known)
            case Fold():
                self.forbid_t(statement)
                degree = self.of(statement.operand)
                if degree not in (0, _ZERO) and statement.combiner is not ADD:
                    raise _NotProportional
                self.known[statement.tile] = degree
            case Contract():
                self.forbid_t(statement)
                left, right = self.of(statement.left), self.of(statement.right)
                degree = _ZERO if left is _ZERO or right is _ZERO else left + right
                self.known[statement.tile] = self.same(degree, self.of(statement.tile))
            case Store():
                if statement.tile is self.t or self.of(statement.tile) not in (0, _ZERO):
                    raise _NotProportional
            case Lookup():
                self.forbid_t(statement)
                if self.of(statement.places) not in (0, _ZERO):
                    raise _NotProportional
            case Load() | Positions() | For():
                pass
            case _:
                raise _NotProportional

    def forbid_t(self, statement: Statement) -> None:
        if self.t in read(statement):
            raise _NotProportional

    @staticmethod
    def same(a: int | None, b: int | None) -> int | None:
        if a is _ZERO or b is _ZERO:
            return b if a is _ZERO else a
        if a != b:
            raise _NotProportional
        return a

    def expr(self, expr: Expr, operands: Sequence[Tile]) -> int | None:
        degrees: dict[Expr, int | None] = {}
        slopes: dict[Expr, int] = {}
        for node in postorder(expr):
            slope = slopes[node] = self.slope(node, operands, slopes)
            if slope or any(slopes[a] for a in node.args):
                if node.op == self.base and not slope:
                    degrees[node] = -slopes[node.args[0]]
                elif not slope and node.op not in ("add", "sub", "neg"):
                    raise _NotProportional
                else:
                    degrees[node] = 0
                continue
            degrees[node] = self.degree(node, operands, degrees)
        if slopes[expr]:
            raise _NotProportional
        return degrees[expr]

    def slope(self, node: Expr, operands: Sequence[Tile], slopes: dict[Expr, int]) -> int:
        """The derivative of a sum with respect to t."""
        inner = [slopes[a] for a in node.args]
        if node.op == "arg":
            return 1 if operands[node.index] is self.t else 0
        if node.op == "add":
            return sum(inner)
        if node.op == "sub":
            return inner[0] - inner[1]
        if node.op == "neg":
            return -inner[0]
        return 0

    def degree(
        self, node: Expr, operands: Sequence[Tile], degrees: dict[Expr, int | None]
    ) -> int | None:
        inner = [degrees[a] for a in node.args]
        if node.op == "arg":
            return self.of(operands[node.index])
        if node.op == "const":
            return _ZERO if node.value == 0 else 0
        if node.op == "mul":
            return _ZERO if _ZERO in inner else sum(d or 0 for d in inner)
        if node.op == "div" and inner[1] is not _ZERO:
            return _ZERO if inner[0] is _ZERO else (inner[0] or 0) - (inner[1] or 0)
        if node.op in ("add", "sub"):
            return self.same(inner[0], inner[1])
        if node.op in ("neg", "cast"):
            return inner[0]
        if node.op == "where" and inner[0] in (0, _ZERO):
            return self.same(inner[1], inner[2])
        if any(d not in (0, _ZERO) for d in inner):
            raise _NotProportional
        return 0
