"""The new graph, node by node."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from blockbuster_fusion.torch.capture.fakes import NONE, meta_like, worked_out
from blockbuster_fusion.torch.capture.graph import short_name, storages_of, tensors_of
from blockbuster_fusion.torch.slices.band import Bands, Place, extents
from blockbuster_fusion.torch.slices.dims import RESHAPING, InTheWay

aten = torch.ops.aten


class Builder:
    """A graph in the making, whose nodes stand for those of an old one."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.wholes: dict[Node, Node] = {}
        """What each old node has become."""
        self.numbers: dict[Place, Node] = {}
        """The nodes that are sizes."""
        self.known: dict[Any, Node] = {}
        """New nodes by what they compute: what two parts have in common is computed once."""
        self.latest: dict[Node, Node] = {}
        """The last of the new nodes that stand where an old one does."""

    def copy(self, node: Node) -> Node:
        """An old node as it is; a view of something that has moved shows other memory."""
        made = self.graph.node_copy(node, lambda n: self.wholes[n])
        shown = [n for n in node.all_input_nodes if storages_of(n) & storages_of(node)]
        if any(storages_of(self.wholes[n]) != storages_of(n) for n in shown):
            target = torch.Tensor.reshape if short_name(node) in RESHAPING else node.target
            made.meta = meta_like(node, worked_out(target, made.args, node, made.kwargs))
        return made

    def emit(
        self,
        target: Any,
        arguments: tuple[Any, ...],
        like: Node,
        options: Mapping[str, Any] = NONE,
    ) -> Node:
        """A node of the new graph, which stands where an old one does."""
        value = worked_out(target, arguments, like, options)
        return self.placed(target, arguments, options, like, value)

    def reshaped(self, x: Node, lengths: Sequence[Place], like: Node) -> Node:
        """A view in another shape; where it lies is decided by whoever stores it."""
        sizes = [self.number(s) for s in lengths]
        value = worked_out(torch.Tensor.reshape, (x, sizes), like)
        return self.placed(aten.view.default, (x, sizes), {}, like, value)

    def placed(
        self,
        target: Any,
        arguments: tuple[Any, ...],
        options: Mapping[str, Any],
        like: Node,
        value: Any,
    ) -> Node:
        key = (target, _frozen(arguments), _frozen([*options.items()]))
        if key in self.known:
            return self.known[key]
        made = self.graph.call_function(target, arguments, dict(options))
        if like in self.wholes:
            after = max([self.latest.get(like, self.wholes[like]), *made.all_input_nodes])
            after.append(made)
            self.latest[like] = made
        made.meta = meta_like(like, value)
        self.known[key] = made
        return made

    def number(self, x: Place) -> int | Node:
        """A length or a position as an argument."""
        if x.is_Integer:
            return int(x)
        if x not in self.numbers:
            raise InTheWay
        return self.numbers[x]

    def in_memory(self, node: Node, bands: Bands) -> Node:
        """A part of an array as it lies in memory."""
        if node not in self.wholes:
            raise InTheWay  # it is being made of its own parts, one of which has no form
        made = self.wholes[node]
        for band in bands:
            lengths = extents(tensors_of(made)[0])
            if band.period is None:
                made = self.sliced(made, band.dim, band.start, band.stop, node)
            elif band.width == 1:
                made = self.emit(
                    aten.slice.Tensor,
                    (
                        made,
                        band.dim,
                        self.number(band.start),
                        self.number(lengths[band.dim]),
                        self.number(band.period),
                    ),
                    node,
                )
            else:
                outer = lengths[band.dim] / band.period
                split = [*lengths[: band.dim], outer, band.period, *lengths[band.dim + 1 :]]
                made = self.reshaped(made, split, node)
                made = self.sliced(made, band.dim + 1, band.start, band.stop, node)
                lengths[band.dim] = band.length(lengths[band.dim])
                made = self.reshaped(made, lengths, node)
        return made

    def sliced(self, x: Node, dim: int, start: Place, stop: Place, like: Node) -> Node:
        return self.emit(aten.slice.Tensor, (x, dim, self.number(start), self.number(stop)), like)


def _frozen(given: Any) -> Any:
    """Arguments as a key."""
    if isinstance(given, list | tuple):
        return tuple(_frozen(x) for x in given)
    return type(given), repr(given) if isinstance(given, float) else given  # -0.0 is not 0.0
