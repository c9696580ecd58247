"""The paper's words for functional operators: `row_scale`, `dot`, `row_sum`, …"""

from collections.abc import Sequence
from typing import NamedTuple

from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.expr import FUNCTIONS, Expr, format_expr
from blockbuster_fusion.ir.ops import BlockReduce, Dot, Elementwise, Scan
from blockbuster_fusion.ir.types import DType

Functional = Elementwise | BlockReduce | Scan | Dot


class ItemText(NamedTuple):
    """The text of an item, and its axes in the order in which the text shows them.

    `row_` and `col_` refer to that order. It may differ from the order in the item's type: the
    product of a vector over K and a block over M and K has the type (K,M) and is written
    col_scale(block,vector), with the axes (M,K).
    """

    text: str
    axes: tuple[Axis, ...]


_BROADCAST = {
    "mul": ("scale", "outer", "{}"),
    "div": ("scale", "outer", "1/{}"),
    "add": ("shift", "outer_add", "{}"),
    "sub": ("shift", "outer_add", "-{}"),
}
_REDUCED = {"add": "sum", "mul": "prod"}

_SUMMARIES = ("sum", "prod", "max", "min", "logaddexp", "any")
_WORDS = ("scale", "shift", *_SUMMARIES, *(f"cum{word}" for word in _SUMMARIES))

WORDS = frozenset(
    [
        *(name.rstrip("_") for name in FUNCTIONS),
        *(dtype.value for dtype in DType),
        *(f"{side}{word}" for side in ("", "row_", "col_") for word in _WORDS),
        *("dot", "outer", "outer_add", "inf", "nan"),
    ]
)
"""Names that have a meaning in an expression."""


def write(op: Functional, operands: Sequence[ItemText], loops: Sequence[Axis] = ()) -> ItemText:
    """The operator applied to its operands, as the paper writes it.

    If the operands do not determine the order of the result's axes, it is that of the `loops`.
    """
    match op:
        case Elementwise():
            return _broadcast(op.expr, operands, loops) or _expression(op.expr, operands, loops)
        case BlockReduce():
            return _block_reduce(op, operands[0])
        case Scan():
            return _scan(op, operands[0])
        case Dot():
            return _dot(op, *operands)


def _broadcast(expr: Expr, operands: Sequence[ItemText], loops: Sequence[Axis]) -> ItemText | None:
    """A plain product or sum (quotient, difference) of two blocks or vectors, by name."""
    if expr.op not in _BROADCAST or any(a.op != "arg" for a in expr.args) or len(operands) != 2:
        return None
    left, right = (operands[a.index] for a in expr.args)
    if left is right or not left.axes or not right.axes:
        return None
    word, outer, inverse = _BROADCAST[expr.op]
    commutes = inverse == "{}"
    if set(left.axes) == set(right.axes):
        text = f"{expr.op}({left.text},{_turned(right, left.axes)})"
        return ItemText(text, left.axes) if commutes else None
    if set(left.axes).isdisjoint(right.axes):
        if commutes and _in_order((left.axes[0], right.axes[0]), loops)[0] is right.axes[0]:
            left, right = right, left
        text = f"{outer}({left.text},{inverse.format(right.text)})"
        return ItemText(text, left.axes + right.axes)
    if commutes and len(left.axes) < len(right.axes):
        left, right = right, left
    if not set(right.axes) < set(left.axes):
        return None
    ends = (left.axes[0] in right.axes, left.axes[-1] in right.axes)
    if ends[0] == ends[1]:
        return None  # a vector along a middle axis is neither per row nor per column
    side = "row" if ends[0] else "col"
    text = f"{side}_{word}({left.text},{inverse.format(right.text)})"
    return ItemText(text, left.axes)


def _expression(expr: Expr, operands: Sequence[ItemText], loops: Sequence[Axis]) -> ItemText:
    widest = max(operands, key=lambda o: len(o.axes), default=ItemText("", ()))
    axes = tuple(dict.fromkeys(axis for o in (widest, *operands) for axis in o.axes))
    if len(axes) > len(widest.axes):
        axes = _in_order(axes, loops)
    return ItemText(format_expr(expr, [_turned(o, axes) for o in operands]), axes)


def _in_order(axes: tuple[Axis, ...], loops: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes in the order of the loops over them; those without a loop come last."""
    return tuple(sorted(axes, key=lambda axis: (*loops, axis).index(axis)))


def _turned(operand: ItemText, axes: tuple[Axis, ...]) -> str:
    """The operand, transposed if `axes` has its two axes in the other order."""
    wanted = tuple(axis for axis in axes if axis in operand.axes)
    turn = len(wanted) == 2 and wanted != operand.axes
    return f"{operand.text}.T" if turn else operand.text


def _block_reduce(op: BlockReduce, block: ItemText) -> ItemText:
    word = _REDUCED.get(op.combiner.name, op.combiner.name)
    at, last = block.axes.index(op.dim.axis), len(block.axes) - 1
    left = tuple(axis for axis in block.axes if axis is not op.dim.axis)
    if last == 0:
        return ItemText(f"{word}({block.text})", left)
    if at in (0, last):
        return ItemText(f"{'row' if at == last else 'col'}_{word}({block.text})", left)
    return ItemText(f"{word}({block.text},axis={at})", left)


def _scan(op: Scan, block: ItemText) -> ItemText:
    word = "cum" + _REDUCED.get(op.combiner.name, op.combiner.name)
    at, last = block.axes.index(op.dim.axis), len(block.axes) - 1
    if last == 0:
        return ItemText(f"{word}({block.text})", block.axes)
    if at in (0, last):
        return ItemText(f"{'row' if at == last else 'col'}_{word}({block.text})", block.axes)
    return ItemText(f"{word}({block.text},axis={at})", block.axes)


def _dot(op: Dot, left: ItemText, right: ItemText) -> ItemText:
    texts: list[str] = []
    kept: list[Axis] = []
    named = False
    for operand in (left, right):
        text, axes = operand
        if axes[-1] is not op.dim.axis:
            if axes[0] is op.dim.axis:
                text, axes = f"{text}.T", axes[::-1]
            else:
                named = True
        texts.append(text)
        kept.extend(axis for axis in axes if axis is not op.dim.axis)
    over = f',axis="{op.dim.axis}"' if named else ""
    return ItemText(f"dot({texts[0]},{texts[1]}{over})", tuple(dict.fromkeys(kept)))
