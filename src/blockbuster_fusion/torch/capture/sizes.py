"""Symbolic sizes of a graph, and the inputs that determine them in a call."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import sympy
import torch
from torch.fx import Node
from torch.utils._sympy.printers import PythonPrinter

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.naming import arithmetic
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import tensors_of
from blockbuster_fusion.torch.capture.symbolic import expression_of, factored


@dataclass(frozen=True)
class SymbolSource:
    """The input, or the dimension of an input, that is the value of a symbol."""

    symbol: str
    slot: int
    dim: int | None


class SymbolTable:
    """The symbols of a graph, and the sizes that are computed from them."""

    def __init__(self, analysis: Analysis, more: Iterable[Any] = ()) -> None:
        """`more` are sizes beside those of the graph's arrays."""
        self.found: dict[str, SymbolSource] = {}
        self.expressions: dict[str, Any] = {}
        """Sizes that are computed, by their text."""
        self.functions: dict[str, Callable[[Mapping[str, int]], int]] = {}
        derived = [*self._read_inputs(analysis.inputs)]
        for expr, source in derived:
            self._solve(expr, source)
        tensors = (t for node in analysis.module.graph.nodes for t in tensors_of(node))
        for extent in chain(more, chain.from_iterable(t.shape for t in tensors)):
            if isinstance(extent, torch.SymInt):
                for factor in factored(expression_of(extent))[1]:
                    if not factor.is_Symbol:
                        self.expressions.setdefault(str(factor), factor)

    @property
    def sources(self) -> list[SymbolSource]:
        return [*self.found.values()]

    def _read_inputs(self, inputs: Iterable[Node]) -> Iterable[tuple[Any, SymbolSource]]:
        """Notes the sizes of inputs that are symbols, and yields those that depend on one."""
        for slot, node in enumerate(inputs):
            value = node.meta.get("val")
            extents: list[tuple[int | None, Any]] = [(None, value)]
            if isinstance(value, torch.Tensor):
                extents = [*enumerate(value.shape)]
            for dim, extent in extents:
                if not isinstance(extent, torch.SymInt):
                    continue
                expr = extent.node.expr
                source = SymbolSource(str(expr), slot, dim)
                if expr.is_Symbol:
                    self.found.setdefault(str(expr), source)
                elif len(expr.free_symbols) == 1:
                    yield expr, source

    def _solve(self, expr: Any, source: SymbolSource) -> None:
        """Computes a symbol from a linear size: torch.export has 2*n + 1 of an n that is none."""
        (symbol,) = expr.free_symbols
        factor = expr.coeff(symbol)
        rest = expr - factor * symbol
        name = str(symbol)
        if name not in self.found and name not in self.expressions and rest.is_Integer:
            self.found[source.symbol] = source
            self.expressions[name] = (sympy.Symbol(source.symbol) - rest) / factor

    def evaluate(self, symbol: str, sizes: Mapping[str, int]) -> int:
        """The value of a symbol, or of a computed size, for the values of the sources."""
        if symbol in sizes:
            return sizes[symbol]
        if symbol not in self.functions:
            derived = {name: x for name, x in self.expressions.items() if name not in self.found}
            text = _SizePrinter(derived).doprint(self.expressions[symbol])
            self.functions[symbol] = arithmetic(f"int({text})", "sizes")
        return self.functions[symbol](sizes)


class _SizePrinter(PythonPrinter):
    """Prints expressions as Python over a mapping `sizes` of the symbols that are not derived."""

    def __init__(self, derived: Mapping[str, Any]) -> None:
        super().__init__()
        self.derived = derived

    def _print_Symbol(self, symbol: sympy.Symbol) -> str:
        name = str(symbol)
        if name in self.derived:
            return f"({self.doprint(self.derived[name])})"
        return f"sizes[{name!r}]"

    def _print_ToFloat(self, expr: sympy.Expr) -> str:
        return f"float({self.doprint(expr.args[0])})"


def captured_length(analysis: Analysis) -> Callable[[Size], int]:
    """A function that gives the length of a size in the captured call."""
    table = SymbolTable(analysis)
    hints = {s.symbol: _hint(analysis.inputs[s.slot], s.dim) for s in table.sources}
    return lambda size: math.prod([size.number, *(table.evaluate(s, hints) for s in size.symbols)])


def _hint(node: Node, dim: int | None) -> int:
    """The length of an input, or of a dimension of it, when the graph was captured."""
    value = node.meta["val"]
    hint = (value if dim is None else value.shape[dim]).node.hint
    return 2 if hint is None else int(hint)
