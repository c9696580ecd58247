"""The names in a listing, each with one meaning."""

import keyword
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.expr import Expr, axes_in
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Elementwise, Map, Misc, Node, Reduce
from blockbuster_fusion.ir.paper_names import WORDS
from blockbuster_fusion.naming import Numbers, word

STATEMENTS = {
    *("load", "store", "take", "range", "index", "copy", "transpose", "rename", "join", "lock")
}


class Names:
    """Allocates unique names that the program does not use otherwise.

    `arrays` has other names for I1, I2, …; these are unique as well.
    """

    def __init__(self, graph: Graph, arrays: Mapping[str, str] | None = None) -> None:
        self.taken = {*keyword.kwlist, "forall", *STATEMENTS, *WORDS, *_mentioned(graph)}
        self.numbers = {letter: count(1) for letter in "tI"}
        self.arrays = arrays or {}
        self.free = Numbers()
        self.bounds: dict[Dim, str] = {}
        self.variables: dict[Dim, list[str]] = {}

    def own(self, wanted: Sequence[str]) -> list[str]:
        """The names of the program's inputs and outputs; only a repeated one is changed."""
        names = [word(name) for name in wanted]
        self.taken |= set(names)
        seen: set[str] = set()
        made = []
        for name in names:
            made.append(self.claim(name) if name in seen else name)
            seen.add(name)
        return made

    def claim(self, wanted: str) -> str:
        """`wanted`, with a number if it is taken."""
        number = self.free(wanted, lambda n: _variant(wanted, n) not in self.taken)
        self.taken.add(_variant(wanted, number))
        return _variant(wanted, number)

    def numbered(self, letter: str) -> str:
        """The next of t1, t2, … or of I1, I2, …"""
        name = next(n for i in self.numbers[letter] if (n := f"{letter}{i}") not in self.taken)
        self.taken.add(name)
        return self.arrays.get(name, name)

    def bound(self, dim: Dim) -> str:
        """The name of the number of blocks of a dim: `K`, or `K2` for a second dim of the axis."""
        if dim not in self.bounds:
            name = word(dim.name)
            lower, upper = name.lower(), name if name != name.lower() else name.upper()

            def pair(number: int) -> tuple[str, str]:
                return _variant(lower, number), _variant(upper, number)

            number = self.free((lower, upper), lambda n: self.taken.isdisjoint(pair(n)))
            variable, bound = pair(number)
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


def _variant(name: str, number: int) -> str:
    return name if number == 1 else f"{name}{number}"


def _mentioned(graph: Graph) -> Iterator[str]:
    """The sizes in the program's expressions and the namespaces of its misc operators."""
    for _, inner in graph.walk():
        for node in inner.nodes.values():
            if isinstance(node.op, Misc):
                yield node.op.namespace.partition(".")[0]
            for axis in axes_in(*_expressions(node)):
                yield str(axis.extent)


def _expressions(node: Node) -> Iterator[Expr]:
    match node.op:
        case Elementwise():
            yield node.op.expr
        case Reduce():
            yield from node.op.combiner.combine
        case Map():
            for mode in node.op.modes:
                yield from mode.combiner.combine if mode is not None else ()
