"""Loops that apply a mask only to the blocks that it divides.

A causal mask leaves most blocks whole: every row of a block sees all their positions. These run in
a loop of their own, without the mask and without the guards of a last block. A second loop visits
the others: those on the diagonal.
"""

from collections.abc import Mapping
from dataclasses import replace

from blockbuster_fusion.ir.expr import Expr, arg, arguments, fold, substitute, with_operands
from blockbuster_fusion.nest.analysis.mask_bounds import Bounds, Fact, Facts, Sum, Truth
from blockbuster_fusion.nest.nest import (
    Body,
    Compute,
    Contract,
    Fold,
    For,
    Index,
    Kernel,
    Statement,
    Store,
    Tile,
    Window,
    walk,
    written,
)
from blockbuster_fusion.nest.passes.remove_dead_code import remove_dead_code
from blockbuster_fusion.nest.rewrite import FreshNames, with_tiles


def divide_masked_loops(kernel: Kernel) -> Kernel:
    """Gives the blocks that a mask leaves whole a loop of their own."""
    made: list[Statement] = []
    for statement in kernel.body:
        loops = _divided(statement, kernel, made) if isinstance(statement, For) else None
        made += loops or [statement]
    divided = replace(kernel, body=tuple(made))
    return kernel if len(made) == len(kernel.body) else remove_dead_code(divided)


def _divided(loop: For, kernel: Kernel, above: list[Statement]) -> list[Statement] | None:
    """Both loops, or None if there is no such mask."""
    window = loop.window
    if window is None or not _is_causal(window) or loop.first or loop.share is not None:
        return None
    if any(isinstance(s, For | Store) for s in walk(loop.body)):
        return None
    assert isinstance(window.high, Expr)
    assert window.rows is not None
    whole = Bounds(highs=(Sum(((window.rows, 1),), window.high),), exact=True)
    clear = _without_mask(loop, _facts(loop, above, kernel.grid), whole)
    if clear is None:
        return None
    kept = {tile for s in walk(tuple(above)) if (tile := written(s)) is not None}
    names, fresh = FreshNames(kernel), dict[Tile, Tile]()

    def own(tile: Tile) -> Tile:
        if tile in kept:  # an accumulator, or what is the same for all blocks
            return tile
        if tile not in fresh:
            fresh[tile] = names.like(tile)
        return fresh[tile]

    body = tuple(_whole(with_tiles(s, own), loop.index) for s in clear)
    first = replace(loop, body=body, window=replace(window, clear=True))
    return [first, replace(loop, window=replace(window, clear=False))]


def _is_causal(window: Window) -> bool:
    """True if rows see all positions up to their own, and blocks are visited once."""
    is_beside = window.rows is not None and window.rows.dim.packed
    return is_beside and not window.seen and window.low is None and isinstance(window.high, Expr)


def _facts(loop: For, above: list[Statement], around: tuple[Index, ...]) -> Facts:
    """The masks of a loop, as functions of its position."""
    makers = [s for s in walk(tuple(above)) if written(s) is not None]
    changed = {written(s) for s in walk(loop.body)}
    outside = {t for s in makers if (t := written(s)) is not None and t not in changed}
    facts = Facts(loop.index, outside, around)
    for statement in (*makers, *loop.body):
        if written(statement) not in changed or statement in loop.body:
            facts.visit(statement)
    return facts


def _without_mask(loop: For, facts: Facts, whole: Bounds) -> Body | None:
    """The body on blocks where a mask with these bounds is true; None if there is no such mask."""
    made: list[Statement] = []
    for statement in loop.body:
        if isinstance(statement, Compute):
            expr = _simplified(statement.expr, facts.nodes(statement), whole)
            made.append(replace(statement, expr=expr) if expr is not statement.expr else statement)
        else:
            made.append(statement)
    return tuple(map(_with_used, made)) if tuple(made) != loop.body else None


def _simplified(expr: Expr, facts: Mapping[Expr, Fact], whole: Bounds) -> Expr:
    """An expression without choices that the mask decides."""

    def step(node: Expr, operands: list[Expr]) -> Expr:
        if node.op == "where":
            fact = facts[node.args[0]]
            if isinstance(fact, Truth) and fact.yes == whole:
                return operands[1]
            if isinstance(fact, Truth) and fact.no == whole:
                return operands[2]
        return with_operands(node, operands)

    return fold(expr, step)


def _with_used(statement: Statement) -> Statement:
    """A computation with the operands that it uses."""
    if not isinstance(statement, Compute):
        return statement
    used = sorted(arguments(statement.expr))
    expr = substitute(statement.expr, {old: arg(new) for new, old in enumerate(used)})
    return replace(statement, expr=expr, operands=tuple(statement.operands[i] for i in used))


def _whole(statement: Statement, index: Index) -> Statement:
    """A statement without guards of a loop's last block: its blocks have no tail."""
    match statement:
        case Fold() if statement.span.at is index:
            return replace(statement, tail_masked=False)
        case Contract() if statement.span.at is index:
            return replace(statement, tail_masked=(False, False))
    return statement
