"""The loop of a grid whose last programs run the longest.

A causal mask shows a row the keys up to its own position, so the programs of the last rows visit
the most blocks. Programs start in the order of their numbers. If the longest ones start last, most
of a machine waits for them in the end. So printers count this loop down. A window that moves with
the rows grows as well, until it has left the beginning of the keys.

The order never changes results. So positions that are loaded, one for each row, are taken to rise.
"""

from collections.abc import Sequence

from blockbuster_fusion.ir.expr import Expr, fold
from blockbuster_fusion.nest.nest import (
    Compute,
    Fold,
    For,
    Index,
    Kernel,
    Load,
    Positions,
    Span,
    Statement,
    Tile,
    Window,
)

Rising = frozenset[Index]
"""The loops along which a number rises."""
NEITHER: Rising = frozenset()


def longest_last(kernel: Kernel) -> Index | None:
    """The first loop of the grid along which the last block that an inner loop visits rises.

    None if there is no such loop, and for a mirrored grid, which has an order of its own.
    """
    if kernel.is_mirrored or not kernel.grid:
        return None
    tiles: dict[Tile, Rising] = {}
    found: set[Index] = set()
    for statement in kernel.statements:
        if isinstance(statement, For):
            found |= NEITHER if statement.window is None else _last_edge(statement.window, tiles)
        elif isinstance(statement, Positions | Load | Compute | Fold):
            tiles[statement.tile] = _made(statement, tiles)
    return next((index for index in kernel.grid if index in found), None)


def _last_edge(window: Window, tiles: dict[Tile, Rising]) -> Rising:
    """The loops along which the last position of a window rises."""
    if isinstance(window.high, Tile):
        return tiles.get(window.high, NEITHER)
    return _along(() if window.high is None or window.rows is None else (window.rows,))


def _made(statement: Statement, tiles: dict[Tile, Rising]) -> Rising:
    """The loops along which the numbers that a statement computes rise."""
    match statement:
        case Positions():
            return _along((statement.span,))
        case Load(tile=tile):
            rows = [span for span in tile.spans if span.dim.packed]  # batches have no order
            return _along(() if tile.dtype.is_float else rows)
        case Fold():
            return tiles.get(statement.operand, NEITHER)
        case Compute(operands=operands):
            return fold(statement.expr, lambda node, inner: _risen(node, inner, operands, tiles))
    return NEITHER


def _along(spans: Sequence[Span]) -> Rising:
    """The loops whose blocks some spans are."""
    return frozenset(span.at for span in spans if isinstance(span.at, Index))


def _risen(
    node: Expr, inner: Sequence[Rising], operands: Sequence[Tile], tiles: dict[Tile, Rising]
) -> Rising:
    """The loops along which a part of an expression rises, given those of its arguments."""
    match node.op:
        case "arg":
            return tiles.get(operands[node.index], NEITHER)
        case "add" | "minimum" | "maximum" | "cast":
            return NEITHER.union(*inner)
        case "sub":
            return inner[0] - inner[1]
        case "mul" | "floordiv" if isinstance(node.args[1].value, int) and node.args[1].value > 0:
            return inner[0]
    return NEITHER
