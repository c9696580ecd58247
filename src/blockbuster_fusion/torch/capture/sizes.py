"""The sizes of a graph that are known only when it runs: where they come from, what they are."""

import math
from collections.abc import Callable, Iterable, Mapping
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
from blockbuster_fusion.torch.plan.plan import SymbolSource


class _SizePrinter(PythonPrinter):
    """Expressions as Python, in which `sizes` has the values of the symbols that are not derived
    from others."""

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


def symbols(analysis: Analysis, more: Iterable[Any] = ()) -> tuple[list[SymbolSource], Any]:
    """Where the symbols of a graph get their values, and what sizes are in terms of them.

    `more` are sizes beside those of the graph's arrays.
    """
    found: dict[str, SymbolSource] = {}
    expressions: dict[str, Any] = {}
    derived: list[tuple[Any, SymbolSource]] = []

    def note(expr: Any, slot: int, dim: int | None) -> None:
        source = SymbolSource(str(expr), slot, dim)
        if expr.is_Symbol:
            found.setdefault(str(expr), source)
        elif len(expr.free_symbols) == 1:
            derived.append((expr, source))

    for slot, node in enumerate(analysis.inputs):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            note(value.node.expr, slot, None)
        elif isinstance(value, torch.Tensor):
            for dim, extent in enumerate(value.shape):
                if isinstance(extent, torch.SymInt):
                    note(extent.node.expr, slot, dim)
    for expr, source in derived:  # torch.export has sizes such as 2*n + 1 of an n that is no size
        (symbol,) = expr.free_symbols
        factor = expr.coeff(symbol)
        rest = expr - factor * symbol
        if str(symbol) not in found and str(symbol) not in expressions and rest.is_Integer:
            found[source.symbol] = source
            expressions[str(symbol)] = (sympy.Symbol(source.symbol) - rest) / factor
    tensors = (t for node in analysis.module.graph.nodes for t in tensors_of(node))
    for extent in chain(more, chain.from_iterable(t.shape for t in tensors)):
        if isinstance(extent, torch.SymInt):
            for factor in factored(expression_of(extent))[1]:
                if not factor.is_Symbol:
                    expressions.setdefault(str(factor), factor)

    functions: dict[str, Callable[[Mapping[str, int]], int]] = {}

    def evaluate(symbol: str, sizes: Mapping[str, int]) -> int:
        if symbol in sizes:
            return sizes[symbol]
        if symbol not in functions:
            derived = {name: x for name, x in expressions.items() if name not in found}
            text = _SizePrinter(derived).doprint(expressions[symbol])
            functions[symbol] = arithmetic(f"int({text})", "sizes")
        return functions[symbol](sizes)

    return [*found.values()], evaluate


def hint(node: Node, dim: int | None) -> int:
    """What a symbol was when the graph was captured."""
    value = node.meta["val"]
    extent = value if dim is None else value.shape[dim]
    hint = extent.node.hint
    return 2 if hint is None else int(hint)


def captured_length(analysis: Analysis) -> Callable[[Size], int]:
    """A function that gives the length of a size in the captured call."""
    found, evaluate = symbols(analysis)
    hints = {s.symbol: hint(analysis.inputs[s.slot], s.dim) for s in found}
    return lambda size: math.prod([size.number, *(evaluate(s, hints) for s in size.symbols)])
