"""Tiles as values of Triton expressions: their texts, shapes and tail masks."""

from collections.abc import Sequence

from blockbuster_fusion.ir.expr import postorder
from blockbuster_fusion.ir.expr_dtypes import node_dtypes
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.described_blocks import (
    described_blocks,
    described_results,
)
from blockbuster_fusion.nest.nest import Compute, Kernel, Span, Statement, Tile, accesses
from blockbuster_fusion.printers.operators import TRITON_TYPES
from blockbuster_fusion.printers.triton.dots import Dots
from blockbuster_fusion.printers.triton.expressions import number_text
from blockbuster_fusion.printers.triton.layout import position
from blockbuster_fusion.printers.triton.variables import Variables

Axes = tuple[Span, ...]


class TileValues:
    """The tiles of one kernel, written with its variables."""

    def __init__(self, kernel: Kernel, variables: Variables) -> None:
        self.variables = variables
        self.dots = Dots(kernel, variables.names.again)
        self.described = {**described_blocks(kernel), **described_results(kernel)}
        self.aliases: dict[Tile, str] = {}
        """The texts of tiles that have no variable: positions."""
        self.wide_positions = any(_multiplies(s) for s in kernel.statements)
        self.wide_ints = self.wide_positions or any(
            a.buffer.dtype is DType.int64 for s in kernel.statements for a in accesses(s)
        )

    def value(self, tile: Tile) -> str:
        """A tile as an operand: widened if it was loaded narrow."""
        name = self.aliases.get(tile) or self.dots.again.get(tile) or tile.name
        narrow = self.dots.narrow.get(tile)
        return name if narrow is None else f"{name}.to({TRITON_TYPES[tile.dtype]})"

    def counted(self, span: Span) -> str:
        name = self.variables.positions(span) if span.dim.packed else self.variables.at(span)
        return f"tl.cast({name}, tl.int64)" if self.wide_positions else name

    def shape(self, tile: Tile) -> str:
        return f"[{', '.join(map(self.variables.length, tile.spans))}]"

    def in_groups(self, text: str, spans: Sequence[Span], groups: Span) -> tuple[str, Axes]:
        """A tile whose last axis is cut into groups, with an axis for them and one within each."""
        if groups.whole not in spans:
            return text, tuple(spans)
        assert spans[-1] == groups.whole, "groups are cut along the last axis alone"
        shape = self.shape_in_groups(spans, groups)
        return f"tl.reshape({text}, {shape})", (*spans[:-1], groups, spans[-1])

    def shape_in_groups(self, spans: Sequence[Span], groups: Span) -> str:
        """The shape of a tile whose last axis is cut into groups."""
        lengths = [*map(self.variables.length, (*spans[:-1], groups)), self.variables.each(groups)]
        return f"[{', '.join(lengths)}]"

    def filled(self, tile: Tile, value: float) -> str:
        if value == 0 or (tile.dtype is DType.bool_ and value < 0):
            return f"tl.zeros({self.shape(tile)}, {TRITON_TYPES[tile.dtype]})"
        if tile.dtype is DType.bool_:
            value = 1
        text = self.limit(value) if not tile.dtype.is_float else number_text(value, tile.dtype)
        return f"tl.full({self.shape(tile)}, {text}, {TRITON_TYPES[tile.dtype]})"

    def limit(self, value: float) -> str:
        """A number as an integer; infinities are the limits of the type."""
        bits = 63 if self.wide_ints else 31
        if value == float("inf"):
            return str(2**bits - 1)
        return str(-(2**bits)) if value == float("-inf") else str(int(value))

    def guarded(self, text: str, spans: Sequence[Span], span: Span, other: str) -> str:
        inside = f"{self.variables.inside(span)}{position(spans, span)}"
        return f"tl.where({inside}, {text}, {other})"

    def least(self, tile: Tile) -> str:
        """The least element of a tile; elements beyond the end of an axis are masked."""
        text = self.value(tile)
        for span in tile.spans:
            inside = f"{self.variables.inside(span)}{position(tile.spans, span)}"
            text = f"tl.where({inside}, {text}, 0.0)"
        return f"tl.min({text})" if tile.spans else text


def _multiplies(statement: Statement) -> bool:
    """True if integers are multiplied, which may need more than 32 bits."""
    if not isinstance(statement, Compute):
        return False
    found = node_dtypes(statement.expr, [t.dtype for t in statement.operands])
    return any(
        node.op in ("mul", "pow") and found[node] is DType.int64
        for node in postorder(statement.expr)
    )
