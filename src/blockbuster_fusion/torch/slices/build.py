"""The new graph in the making, node by node."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from blockbuster_fusion.torch.capture.fakes import NONE, fake_result, meta_like
from blockbuster_fusion.torch.capture.nodes import short_name, storages_of, tensor_of
from blockbuster_fusion.torch.slices.band import Bands, SymbolicInt, extents
from blockbuster_fusion.torch.slices.dims import RESHAPING, CannotMove

aten = torch.ops.aten


class CounterpartBuilder:
    """Builds a graph whose nodes are counterparts of those of an old one."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.counterparts: dict[Node, Node] = {}
        """The new node for each old one."""
        self.sizes: dict[SymbolicInt, Node] = {}
        """The new nodes that are sizes."""
        self.known: dict[Any, Node] = {}
        """New nodes by operator and arguments, so that none is computed twice."""
        self.latest: dict[Node, Node] = {}
        """The last of the new nodes that belong to an old one."""

    def copy(self, node: Node) -> Node:
        """A copy of an old node; a view of something that has moved shows other memory."""
        made = self.graph.node_copy(node, lambda n: self.counterparts[n])
        shown = [n for n in node.all_input_nodes if storages_of(n) & storages_of(node)]
        if any(storages_of(self.counterparts[n]) != storages_of(n) for n in shown):
            target = torch.Tensor.reshape if short_name(node) in RESHAPING else node.target
            made.meta = meta_like(node, fake_result(target, made.args, node, made.kwargs))
        return made

    def emit(
        self,
        target: Any,
        arguments: tuple[Any, ...],
        like: Node,
        options: Mapping[str, Any] = NONE,
    ) -> Node:
        """A call in the new graph, which belongs to an old node."""
        value = fake_result(target, arguments, like, options)
        return self.call(target, arguments, options, like, value)

    def reshaped(self, x: Node, lengths: Sequence[SymbolicInt], like: Node) -> Node:
        """A view in another shape; its memory is decided by the part that stores it."""
        sizes = [self.size(s) for s in lengths]
        value = fake_result(torch.Tensor.reshape, (x, sizes), like)
        return self.call(aten.view.default, (x, sizes), {}, like, value)

    def call(
        self,
        target: Any,
        arguments: tuple[Any, ...],
        options: Mapping[str, Any],
        like: Node,
        value: Any,
    ) -> Node:
        """The node of a call: a known one, or a new one behind those of the same old node."""
        key = (target, _frozen(arguments), _frozen([*options.items()]))
        if key in self.known:
            return self.known[key]
        made = self.graph.call_function(target, arguments, dict(options))
        if like in self.counterparts:
            after = max([self.latest.get(like, self.counterparts[like]), *made.all_input_nodes])
            after.append(made)
            self.latest[like] = made
        made.meta = meta_like(like, value)
        self.known[key] = made
        return made

    def size(self, x: SymbolicInt) -> int | Node:
        """A length or a position as an argument, or CannotMove if no node computes it."""
        if x.is_Integer:
            return int(x)
        if x not in self.sizes:
            raise CannotMove
        return self.sizes[x]

    def slice_in_memory(self, node: Node, bands: Bands) -> Node:
        """A slice of a node that lies in memory."""
        if node not in self.counterparts:
            raise CannotMove  # it is being made of its own slices, one of which cannot move
        made = self.counterparts[node]
        for band in bands:
            lengths = extents(tensor_of(made))
            if band.period is None:
                made = self.sliced(made, band.dim, band.start, band.stop, node)
            elif band.width == 1:
                bounds = (band.start, lengths[band.dim], band.period)
                arguments = (made, band.dim, *map(self.size, bounds))
                made = self.emit(aten.slice.Tensor, arguments, node)
            else:
                outer = lengths[band.dim] / band.period
                split = [*lengths[: band.dim], outer, band.period, *lengths[band.dim + 1 :]]
                made = self.reshaped(made, split, node)
                made = self.sliced(made, band.dim + 1, band.start, band.stop, node)
                lengths[band.dim] = band.length(lengths[band.dim])
                made = self.reshaped(made, lengths, node)
        return made

    def sliced(self, x: Node, dim: int, start: SymbolicInt, stop: SymbolicInt, like: Node) -> Node:
        return self.emit(aten.slice.Tensor, (x, dim, self.size(start), self.size(stop)), like)


def _frozen(given: Any) -> Any:
    """Arguments as a key."""
    if isinstance(given, list | tuple):
        return tuple(_frozen(x) for x in given)
    return type(given), repr(given) if isinstance(given, float) else given  # -0.0 is not 0.0
