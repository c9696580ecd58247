"""Symbolic sizes of a graph, and the inputs that determine them in a call."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import sympy
import torch
from torch.fx import Node
from torch.utils._sympy.printers import PythonPrinter

from blockbuster_fusion.array.axes import Length
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


def captured_length(analysis: Analysis) -> Length:
    """A function that gives the length of a size in the captured call."""
    return ExpectedSizes(analysis).captured


LONGEST = 1 << 14
"""The longest length that is expected of a size without an upper bound."""
STEP = 4
"""The factor between lengths that are expected."""


@dataclass(frozen=True)
class Span:
    """A range of the values of a symbol, given by those among them that are expected."""

    symbol: str
    lengths: tuple[int, ...]
    """In ascending order."""
    usual: int
    """The one that stands for all: in the range of the captured call, that of the call."""


class ExpectedSizes:
    """The values of a graph's symbols: in the captured call, and those that later ones may have.

    These are powers of four within the bounds that PyTorch knows. With a span, these are the values
    in it alone, and its usual value takes the place of that of the captured call.
    """

    def __init__(self, analysis: Analysis, span: Span | None = None) -> None:
        self.span = span
        self.table = SymbolTable(analysis)
        given = ((s, analysis.inputs[s.slot].meta["val"]) for s in self.table.sources)
        self.extents = {s.symbol: x if s.dim is None else x.shape[s.dim] for s, x in given}
        self.hints = {name: _hint(extent) for name, extent in self.extents.items()}
        if span is not None:
            self.hints[span.symbol] = span.usual
        self.captured = self.given({})

    @cached_property
    def lengths(self) -> dict[str, list[int]]:
        """The values of each symbol, in ascending order, that of the captured call included."""
        found = {name: _lengths(extent) for name, extent in self.extents.items()}
        return found if self.span is None else found | {self.span.symbol: [*self.span.lengths]}

    def given(self, values: Mapping[str, int]) -> Length:
        """The lengths of sizes with these values of symbols, the others as captured."""
        known, evaluate = self.hints | dict(values), self.table.evaluate
        return lambda size: math.prod([size.number, *(evaluate(s, known) for s in size.symbols)])

    def along(self, symbol: str) -> list[Length]:
        """The lengths of sizes for each value of a symbol."""
        return [self.given({symbol: length}) for length in self.lengths[symbol]]

    @property
    def shortest(self) -> Length:
        """The lengths of sizes with the least value of each symbol."""
        return self.given({name: lengths[0] for name, lengths in self.lengths.items()})

    @property
    def longest(self) -> Iterator[Length]:
        """The lengths of sizes with large values of all symbols, the largest first."""
        longer = {n: [k for k in x if k >= self.hints[n]] for n, x in self.lengths.items()}
        for step in range(1, max(map(len, longer.values()), default=0)):
            yield self.given({n: x[max(0, len(x) - step)] for n, x in longer.items()})


def _hint(extent: Any) -> int:
    """The value of a symbolic size when the graph was captured."""
    hint = extent.node.hint
    return 2 if hint is None else int(hint)


def _lengths(extent: Any) -> list[int]:
    """The values that stand for those that a symbolic size may have."""
    captured, bounds = _hint(extent), extent.node.shape_env.bound_sympy(extent.node.expr)
    low = max(1, int(bounds.lower)) if bounds.lower.is_Integer else 1
    high = min(LONGEST, int(bounds.upper)) if bounds.upper.is_Integer else LONGEST
    powers = [STEP**power for power in range(LONGEST.bit_length()) if low <= STEP**power <= high]
    apart = [n for n in powers if not captured < 2 * n < 4 * captured]
    return sorted({captured, *apart})
