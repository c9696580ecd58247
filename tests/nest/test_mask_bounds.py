"""Bounds that masks set on positions, each transfer function against all positions of a block."""

import itertools
import random

import pytest

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.expr import FUNCTIONS, Expr, arg, call, cast, const, postorder, size
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.mask_bounds import (
    Bound,
    Bounds,
    Facts,
    Sum,
    Truth,
    bound_expr,
    terms_of,
)
from blockbuster_fusion.nest.nest import Compute, Index, Positions, Span, Tile

LENGTH = 7
N = Axis("N", LENGTH)
ROWS, KEYS = Dim(Axis("M", LENGTH)), Dim(N)
ROW, KEY = Index("m", ROWS), Index("n", KEYS)
AT_ROW = Tile("i", (Span(ROWS, ROW),), DType.int64)
AT_KEY = Tile("j", (Span(KEYS, KEY),), DType.int64)
C = Tile("c", (), DType.int64)
"""A whole number that was loaded."""
D = Tile("d", (), DType.bool_)
"""A truth that was loaded."""
MASK = Tile("mask", (*AT_ROW.spans, *AT_KEY.spans), DType.bool_)
OPERANDS = (AT_KEY, AT_ROW, C, D)

COMPARISONS = ("le", "lt", "ge", "gt", "eq", "ne")
LOGIC = ("and_", "or_", "not_", "where", "cast")
NUMERIC = ("add", "sub", "neg", "mul", "floordiv", "whole")


def some_sum(r: random.Random, depth: int = 2, op: str | None = None) -> Expr:
    if op is None and (depth == 0 or r.random() < 0.4):
        return r.choice([arg(0), arg(0), arg(1), arg(2), const(r.randint(-4, 4)), size(N)])
    inner = [some_sum(r, depth - 1) for _ in range(2)]
    match op or r.choice(NUMERIC):
        case "neg":
            return -inner[0]
        case "mul":
            return inner[0] * const(r.randint(-3, 3))
        case "floordiv":
            return call("floordiv", inner[0], const(r.randint(1, 4)))
        case "whole":
            return cast(inner[0], DType.int32)
        case name:
            return call(name, *inner)


def some_mask(r: random.Random, depth: int = 2, op: str | None = None) -> Expr:
    op = op or r.choice(COMPARISONS if depth == 0 else (*COMPARISONS, *LOGIC, "arg", "const"))
    match op:
        case "arg":
            return arg(3)
        case "const":
            return const(r.random() < 0.5)
        case "cast":
            return cast(some_mask(r, depth - 1), DType.bool_)
        case _ if op in COMPARISONS:
            return call(op, some_sum(r), some_sum(r))
    return call(op, *(some_mask(r, depth - 1) for _ in range(FUNCTIONS[op].arity)))


def evaluated(expr: Expr, values: list[int]) -> int:
    made: dict[Expr, int] = {}
    for node in postorder(expr):
        match node.op:
            case "arg":
                made[node] = values[node.value]
            case "const":
                made[node] = node.value
            case "size":
                made[node] = LENGTH
            case "cast":
                made[node] = made[node.args[0]]
            case op:
                made[node] = FUNCTIONS[op].numpy(*(made[a] for a in node.args))
    return made[expr]


def edge_at(edge: Bound, where: dict[object, int]) -> int:
    leaves = terms_of(edge)
    expr = bound_expr(edge, {leaf: arg(at) for at, leaf in enumerate(leaves)})
    return evaluated(expr, [where[leaf] for leaf in leaves])


def within(bounds: Bounds, where: dict[object, int]) -> bool:
    if bounds.nowhere:
        return False
    position = where[AT_KEY.spans[0]]
    lows = all(edge_at(edge, where) <= position for edge in bounds.lows)
    return lows and all(position <= edge_at(edge, where) for edge in bounds.highs)


def facts_of(expr: Expr) -> Sum | Truth | None:
    facts = Facts(KEY, {AT_ROW, C, D}, (ROW,))
    facts.visit(Positions(AT_KEY, AT_KEY.spans[0]))
    facts.visit(Positions(AT_ROW, AT_ROW.spans[0]))
    return facts.nodes(Compute(MASK, expr, OPERANDS))[expr]


def places(r: random.Random) -> list[dict[object, int]]:
    rows = itertools.product(range(LENGTH), range(LENGTH), [r.randint(-9, 9)], [0, 1])
    return [{AT_KEY.spans[0]: j, AT_ROW.spans[0]: i, C: c, D: d} for j, i, c, d in rows]


@pytest.mark.parametrize("op", [*COMPARISONS, *LOGIC])
def test_masks_hold_within_their_bounds(op: str) -> None:
    r = random.Random(op)
    bounded = exact = 0
    for _ in range(50):
        expr = some_mask(r, op=op)
        fact = facts_of(expr)
        if not isinstance(fact, Truth):
            continue
        sides = {True: fact.yes, False: fact.no}
        bounded += any(b.lows or b.highs for b in sides.values())
        exact += any(b.exact for b in sides.values())
        for where in places(r):
            values = [where[AT_KEY.spans[0]], where[AT_ROW.spans[0]], where[C], where[D]]
            holds = bool(evaluated(expr, values))
            assert within(sides[holds], where), expr
            if sides[not holds].exact:
                assert not within(sides[not holds], where), expr
    assert bounded > 5
    assert exact or op == "or_"


@pytest.mark.parametrize("op", NUMERIC)
def test_sums_are_what_they_say(op: str) -> None:
    r = random.Random(op)
    known = 0
    for _ in range(50):
        expr = some_sum(r, op=op)
        fact = facts_of(expr)
        if not isinstance(fact, Sum):
            continue
        known += 1
        for where in places(r)[::5]:
            values = [where[AT_KEY.spans[0]], where[AT_ROW.spans[0]], where[C], where[D]]
            assert edge_at(fact, where) == evaluated(expr, values), expr
    assert known > 30
