"""The names in a listing: each used for one thing only."""

import keyword
import re
from collections.abc import Iterator, Sequence
from itertools import count

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.expr import Expr, postorder
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Elementwise, Map, Misc, Node, Reduce
from blockbuster_fusion.ir.words import WORDS

STATEMENTS = {
    *("load", "store", "take", "range", "index", "copy", "transpose", "rename", "join", "lock")
}


class Names:
    """Gives out names, none of them twice and none that the program uses in another sense."""

    def __init__(self, graph: Graph) -> None:
        self.taken = {*keyword.kwlist, "forall", *STATEMENTS, *WORDS, *_mentioned(graph)}
        self.numbers = {letter: count(1) for letter in "tI"}
        self.bounds: dict[Dim, str] = {}
        self.variables: dict[Dim, list[str]] = {}

    def own(self, wanted: Sequence[str]) -> list[str]:
        """The names of the program's inputs and outputs; only a repeated one is changed."""
        names = [re.sub(r"\W", "_", name) for name in wanted]
        self.taken |= set(names)
        seen: set[str] = set()
        made = []
        for name in names:
            made.append(self.claim(name) if name in seen else name)
            seen.add(name)
        return made

    def claim(self, wanted: str) -> str:
        """`wanted`, or with a number where that is taken."""
        name = next(n for n in _variants(wanted) if n not in self.taken)
        self.taken.add(name)
        return name

    def numbered(self, letter: str) -> str:
        """The next of t1, t2, … or of I1, I2, …"""
        name = next(n for i in self.numbers[letter] if (n := f"{letter}{i}") not in self.taken)
        self.taken.add(name)
        return name

    def bound(self, dim: Dim) -> str:
        """How many blocks the dim has, `K`; `K2` where another dim of the axis came before."""
        if dim not in self.bounds:
            name = re.sub(r"\W", "_", dim.name)
            if name.lower() == name.upper():
                name = f"X{name}"  # without case there is no lower case for the variable
            upper = name if name != name.lower() else name.upper()
            pairs = zip(_variants(name.lower()), _variants(upper), strict=True)
            variable, bound = next(pair for pair in pairs if self.taken.isdisjoint(pair))
            self.taken |= {variable, bound}
            self.bounds[dim], self.variables[dim] = bound, [variable]
        return self.bounds[dim]

    def variable(self, dim: Dim, enclosing: Sequence[str]) -> str:
        """The variable of a loop over the dim, `k`; `k2` inside another loop over it."""
        self.bound(dim)
        variables = self.variables[dim]
        if all(v in enclosing for v in variables):
            variables.append(self.claim(variables[0]))
        return next(v for v in variables if v not in enclosing)


def _variants(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}{i}" for i in count(2))


def _mentioned(graph: Graph) -> Iterator[str]:
    """The sizes in the program's expressions and the namespaces of its misc operators."""
    for _, inner in graph.walk():
        for node in inner.nodes.values():
            if isinstance(node.op, Misc):
                yield node.op.namespace.partition(".")[0]
            for expr in postorder(*_expressions(node)):
                if isinstance(expr.value, Axis):
                    yield str(expr.value.extent)


def _expressions(node: Node) -> Iterator[Expr]:
    match node.op:
        case Elementwise():
            yield node.op.expr
        case Reduce():
            yield from node.op.combiner.combine
        case Map():
            for mode in node.op.modes:
                yield from mode.combiner.combine if mode is not None else ()
