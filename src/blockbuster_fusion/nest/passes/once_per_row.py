"""Functions of the numbers of a row are computed once for the row, not for each of its elements.

A log softmax has x - m - log(s): the logarithm of a row's sum is part of the expression of every
element. The pass gives it a tile of its own, with one number for each row.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from blockbuster_fusion.ir.expr import (
    FUNCTIONS,
    Expr,
    arg,
    arguments,
    contains,
    postorder,
    substitute,
    with_operands,
)
from blockbuster_fusion.ir.expr_dtypes import node_dtypes
from blockbuster_fusion.nest.nest import Body, Compute, Contract, Kernel, Statement, Tile
from blockbuster_fusion.nest.nest import tiles as tiles_of
from blockbuster_fusion.nest.rewrite import rebuilt

SLOW = {"pow", "mod", "floordiv", *(name for name, f in FUNCTIONS.items() if f.result == "float")}
"""Functions that take longer than reading their result again."""


def once_per_row(kernel: Kernel) -> Kernel:
    """Gives slow functions of rows tiles of their own; kernels with products stay as they are."""
    statements = kernel.statements
    if any(isinstance(s, Contract) for s in statements):
        return kernel
    names = {tile.name for s in statements for tile in tiles_of(s)}

    def apart(body: Body) -> Body:
        return tuple(made for s in body for made in _apart(s, names))

    return replace(kernel, body=rebuilt(kernel.body, apart))


def _apart(statement: Statement, names: set[str]) -> Iterator[Statement]:
    """A statement, after those that compute its slow functions of rows."""
    found = _slow_parts(statement) if isinstance(statement, Compute) else []
    if not isinstance(statement, Compute) or not found:
        yield statement
        return
    tile, operands = statement.tile, [*statement.operands]
    dtypes = node_dtypes(statement.expr, [t.dtype for t in operands])
    known: dict[Expr, Expr] = {}
    for node in found:
        own = Tile(_fresh(tile, names), tile.spans[:-1], dtypes[node] or tile.dtype)
        yield _compute(own, node, operands)
        known[node] = arg(len(operands))
        operands.append(own)
    yield _compute(tile, _replaced(statement.expr, known), operands)


def _slow_parts(statement: Compute) -> list[Expr]:
    """The largest parts of an expression that are slow functions of the numbers of a row."""
    *outer, last = statement.tile.spans or (None,)
    if not outer:
        return []
    along = {n for n, tile in enumerate(statement.operands) if last in tile.spans}
    found: list[Expr] = []
    pending, seen = [statement.expr], {statement.expr}
    while pending:
        node = pending.pop()
        used = arguments(node)
        if used and used.isdisjoint(along) and contains(node, *SLOW):
            found.append(node)
        elif not used.isdisjoint(along):
            pending += [a for a in dict.fromkeys(node.args) if a not in seen]
            seen |= {*node.args}
    return found


def _compute(tile: Tile, expr: Expr, operands: list[Tile]) -> Compute:
    """A computation with those operands that it uses."""
    used = sorted(arguments(expr))
    renumbered = substitute(expr, {number: arg(at) for at, number in enumerate(used)})
    return Compute(tile, renumbered, tuple(operands[number] for number in used))


def _replaced(expr: Expr, known: dict[Expr, Expr]) -> Expr:
    """An expression with some of its parts replaced."""
    made: dict[Expr, Expr] = {}
    for node in postorder(expr):
        same = with_operands(node, [made[a] for a in node.args])
        made[node] = known.get(node, same)
    return made[expr]


def _fresh(tile: Tile, names: set[str]) -> str:
    """A new name for a tile with numbers of the rows of another."""
    wanted = (f"{tile.name}_row{number or ''}" for number in count())
    name = next(name for name in wanted if name not in names)
    names.add(name)
    return name
