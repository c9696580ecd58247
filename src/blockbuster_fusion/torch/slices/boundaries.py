"""Which operators of a graph consist of pieces, and where the pieces end."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch.fx import Node

from blockbuster_fusion.select.parts import Kind
from blockbuster_fusion.torch.capture.graph import Analysis, short_name, tensors_of
from blockbuster_fusion.torch.slices.band import (
    Band,
    Place,
    extents,
    place,
    through_view,
)
from blockbuster_fusion.torch.slices.dims import RESHAPING, InTheWay, source_dim

LOOKUPS = frozenset({"embedding", "index_select", "gather", "index", "constant_pad_nd", "cat"})
"""Pointwise operators of which an element does not come from the same place of its operands."""


@dataclass(frozen=True)
class Cuts:
    """Where along a dimension a node consists of pieces."""

    dim: int
    bounds: tuple[Place, ...]
    period: Place | None
    is_computed: bool
    """Whether kernels compute every piece, so that each can be stored in its place."""

    def bands(self) -> list[Band]:
        pairs = zip(self.bounds, self.bounds[1:], strict=False)
        return [Band(self.dim, a, b, self.period) for a, b in pairs]


@dataclass(frozen=True)
class Pieces:
    """What consists of pieces in a graph."""

    analysis: Analysis
    stored: Collection[Node]
    """Nodes whose parts are parts of what lies in memory."""
    undivided: Collection[Node]
    """Operators that are computed whole though an operand consists of pieces."""

    @cached_property
    def known(self) -> dict[Node, Cuts | None]:
        return {}

    @cached_property
    def divided(self) -> set[Node]:
        """The operators that are computed piece by piece, and the pieces joined: what consists of
        computed pieces, also for all that read it elementwise."""
        found: set[Node] = set()
        for node in reversed(self.analysis.nodes):
            if not tensors_of(node) or self.analysis.kind(node) is not Kind.POINTWISE:
                continue
            cuts = self.cuts(node) if short_name(node) != "cat" else None
            if cuts is not None and cuts.is_computed and self.elementwise_readers(node) <= found:
                found.add(node)
        return found

    def is_strided_anew(self, node: Node) -> bool:
        """Whether `as_strided` looks at the memory that a node, or a view of it, lies in."""
        stack, seen = [node], set[Node]()
        while stack:
            for user in stack.pop().users:
                if short_name(user) == "as_strided":
                    return True
                is_view = user.op == "call_function" and self.analysis.kind(user) is Kind.VIEW
                if is_view and user not in seen:
                    seen.add(user)
                    stack.append(user)
        return False

    def elementwise_readers(self, node: Node) -> set[Node]:
        """The operators that read a node, or a view of it, element by element."""
        found: set[Node] = set()
        stack, seen = [node], set[Node]()
        while stack:
            for user in stack.pop().users:
                kind = Kind.MISC if user.op == "output" else self.analysis.kind(user)
                if kind in (Kind.POINTWISE, Kind.REDUCTION) and short_name(user) != "cat":
                    found.add(user)
                elif kind is Kind.VIEW and user not in seen:
                    seen.add(user)
                    stack.append(user)
        return found

    def cuts(self, node: Node) -> Cuts | None:
        if node not in self.known:
            try:
                self.known[node] = self.find_cuts(node)
            except InTheWay:
                self.known[node] = None
        return self.known[node]

    def find_cuts(self, node: Node) -> Cuts | None:
        if node.op != "call_function" or len(tensors_of(node)) != 1 or node in self.stored:
            return None
        kind = self.analysis.kind(node)
        name = short_name(node)
        if name == "cat" and kind in (Kind.POINTWISE, Kind.MISC):
            return self.cuts_of_cat(node)
        if kind is Kind.VIEW and not self.analysis.is_indexed(node):
            return self.cuts_of_view(node)
        if kind is not Kind.POINTWISE or name in LOOKUPS or node in self.undivided:
            return None
        rank = len(tensors_of(node)[0].shape)
        found: Cuts | None = None
        for source in node.all_input_nodes:
            cuts = self.cuts(source) if tensors_of(source) else None
            if cuts is not None and (found is None or cuts.is_computed > found.is_computed):
                found = replace(cuts, dim=cuts.dim + rank - tensors_of(source)[0].dim())
        return found

    def cuts_of_cat(self, node: Node) -> Cuts | None:
        pieces, dim = self.analysis.joined(node)
        if len(pieces) < 2 or not is_of_one_dtype(pieces):
            return None
        bounds = [place(0)]
        for piece in pieces:
            bounds.append(bounds[-1] + extents(tensors_of(piece)[0])[dim])
        is_computed = all(self.analysis.roots(p) for p in pieces)
        return Cuts(dim, tuple(bounds), None, is_computed)

    def cuts_of_view(self, node: Node) -> Cuts | None:
        """The pieces of what a view shows, where they are pieces of the view as well."""
        sources = [n for n in node.all_input_nodes if tensors_of(n)]
        found = self.cuts(sources[0]) if len(sources) == 1 else None
        if found is None:
            return None
        before, after = extents(tensors_of(sources[0])[0]), extents(tensors_of(node)[0])
        if short_name(node) not in RESHAPING:
            for dim in range(len(after)):
                if source_dim(node, dim) == found.dim:
                    return replace(found, dim=dim)
            return None
        bands = [through_view(band, before, after) for band in found.bands()]
        plain = [b for b in bands if b is not None]
        if len(plain) < len(bands) or len({(b.dim, b.period) for b in plain}) > 1:
            return None
        bounds = (plain[0].start, *(b.stop for b in plain))
        return replace(found, dim=plain[0].dim, bounds=bounds, period=plain[0].period)


def is_of_one_dtype(nodes: Sequence[Node]) -> bool:
    return len({t.dtype for n in nodes for t in tensors_of(n)}) == 1
