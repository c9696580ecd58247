"""Complex numbers as pairs of floats: an array of the real parts, and one of the imaginary ones.

Rotary embeddings that rotate by a complex product become sums of products, as in other models. An
operator that is not known here keeps its complex numbers, and so do all operators that are
connected to it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from blockbuster_fusion.torch.capture.fakes import inserted
from blockbuster_fusion.torch.capture.nodes import GIVEN, short_name, tensor_of, tensors_of

aten = torch.ops.aten

FLOATS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""The dtypes of the real and imaginary parts."""
VIEWS = frozenset({"view", "_unsafe_view", "reshape"})
ALIKE = VIEWS | {
    *("permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "repeat", "slice", "select"),
    *("clone", "alias", "detach", "index", "index_select"),
}
"""Operators that act on both parts alike."""
COMPUTED = frozenset(
    {
        *("view_as_complex", "polar", "complex", "convert_element_type", "_to_copy"),
        *("add", "sub", "mul", "neg", "_conj", "conj_physical", "cat"),
    }
)


@dataclass(frozen=True)
class Pair:
    """The parts of complex numbers, each a node or a number; real numbers have no second."""

    real: Any
    imaginary: Any = None


def pair_complex(module: GraphModule) -> None:
    """Replaces complex arrays by pairs of floats, if all operators that meet are known."""
    graph = module.graph
    paired = {n for group in _connected(graph.nodes) if _is_known(group) for n in group}
    if paired:
        _Pairs(graph, paired).rewrite()


def is_complex(node: Any) -> bool:
    """True if a node is an array of complex numbers."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.is_complex()


def _connected(nodes: Iterable[Node]) -> list[set[Node]]:
    """The complex arrays, in groups that are connected by operators."""
    left = {n for n in nodes if is_complex(n)}
    found: list[set[Node]] = []
    while left:
        stack, group = [next(iter(left))], set[Node]()
        while stack:
            node = stack.pop()
            if node in left:
                left.discard(node)
                group.add(node)
                stack.extend([*node.all_input_nodes, *node.users])
        found.append(group)
    return found


def _is_known(group: set[Node]) -> bool:
    readers = {user for node in group for user in node.users} - group
    is_read = all(short_name(user) == "view_as_real" for user in readers)
    return is_read and any(n.op not in GIVEN for n in group) and all(map(_is_known_node, group))


def _is_known_node(node: Node) -> bool:
    (tensor,) = tensors_of(node)
    if tensor.dtype not in FLOATS or tensor.layout is not torch.strided:
        return False
    if node.op in GIVEN:
        return not tensor.is_conj()
    name = short_name(node)
    if name in ("convert_element_type", "_to_copy"):
        return not is_complex(node.args[0])
    return name in ALIKE or (name in COMPUTED and not node.kwargs)


class _Pairs:
    """Rewrites a graph so that its complex arrays are pairs."""

    def __init__(self, graph: Graph, paired: set[Node]) -> None:
        self.graph, self.paired = graph, paired
        self.pairs: dict[Node, Pair] = {}
        self.at: Node
        """The old node that new nodes belong to."""

    def rewrite(self) -> None:
        for node in [*self.graph.nodes]:
            self.at = node
            with self.graph.inserting_before(node):
                if node in self.paired and node.op not in GIVEN:
                    self.pairs[node] = self.made(node)
                elif short_name(node) == "view_as_real" and node.args[0] in self.paired:
                    node.replace_all_uses_with(self.interleaved(self.pair(node.args[0])))
                    self.graph.erase_node(node)
        for node in reversed([n for n in self.graph.nodes if n in self.paired]):
            if node.op not in GIVEN:
                self.graph.erase_node(node)

    def emit(self, target: Any, *arguments: Any, **options: Any) -> Node:
        return inserted(self.graph, target, arguments, self.at, options)

    def pair(self, given: Any) -> Pair:
        """The parts of an operand: complex numbers, real ones, or one number."""
        if isinstance(given, complex):
            return Pair(given.real, given.imag)
        if not is_complex(given):
            return Pair(given)
        if given not in self.pairs:
            self.pairs[given] = self.halves(self.emit(aten.view_as_real.default, given))
        return self.pairs[given]

    def halves(self, x: Node) -> Pair:
        """The pair whose parts lie along the last dimension."""
        return Pair(*(self.emit(aten.select.int, x, -1, i) for i in (0, 1)))

    def interleaved(self, pair: Pair) -> Node:
        """Both parts along a last dimension."""
        parts = [self.emit(aten.unsqueeze.default, x, -1) for x in self.whole(pair)]
        return self.emit(aten.cat.default, parts, -1)

    def whole(self, pair: Pair) -> tuple[Any, Any]:
        """Both parts; the imaginary part of real numbers is 0."""
        if pair.imaginary is not None:
            return pair.real, pair.imaginary
        is_array = isinstance(pair.real, Node) and tensors_of(pair.real)
        return pair.real, self.emit(aten.full_like.default, pair.real, 0) if is_array else 0

    def made(self, node: Node) -> Pair:
        """A complex node as a pair."""
        arguments: Any = node.args
        match short_name(node):
            case "view_as_complex":
                return self.halves(arguments[0])
            case "complex":
                return Pair(*arguments)
            case "polar":
                length, angle = arguments
                turned = (self.emit(f, angle) for f in (aten.cos.default, aten.sin.default))
                return Pair(*(self.emit(aten.mul.Tensor, length, x) for x in turned))
            case "convert_element_type" | "_to_copy":
                options = {**node.kwargs, "dtype": FLOATS[tensor_of(node).dtype]}
                return Pair(self.emit(aten._to_copy.default, arguments[0], **options))
            case "mul":
                return self.product(*map(self.pair, arguments))
            case "add" | "sub":
                x, y = (self.whole(self.pair(a)) for a in arguments)
                return Pair(*(self.emit(node.target, *both) for both in zip(x, y, strict=True)))
            case "neg":
                return self.each(lambda x: self.emit(node.target, x), self.pair(arguments[0]))
            case "_conj" | "conj_physical":
                real, imaginary = self.whole(self.pair(arguments[0]))
                return Pair(real, self.emit(aten.neg.default, imaginary))
            case "cat":
                pieces = [self.whole(self.pair(x)) for x in arguments[0]]
                columns = ([*column] for column in zip(*pieces, strict=True))
                return Pair(*(self.emit(node.target, c, *arguments[1:]) for c in columns))
        target = aten.reshape.default if short_name(node) in VIEWS else node.target
        source, *rest = arguments

        def alike(x: Node) -> Node:
            return self.emit(target, x, *rest, **node.kwargs)

        return self.each(alike, self.pair(source))

    def each(self, function: Callable[[Any], Any], pair: Pair) -> Pair:
        imaginary = None if pair.imaginary is None else function(pair.imaginary)
        return Pair(function(pair.real), imaginary)

    def product(self, x: Pair, y: Pair) -> Pair:
        """(a + bi)(c + di) = (ac - bd) + (ad + bc)i"""
        real = self.emit(aten.mul.Tensor, x.real, y.real)
        crossed = [
            self.emit(aten.mul.Tensor, a, b)
            for a, b in ((x.real, y.imaginary), (x.imaginary, y.real))
            if a is not None and b is not None
        ]
        if len(crossed) == 2:
            both = self.emit(aten.mul.Tensor, x.imaginary, y.imaginary)
            return Pair(
                self.emit(aten.sub.Tensor, real, both), self.emit(aten.add.Tensor, *crossed)
            )
        return Pair(real, *crossed)
