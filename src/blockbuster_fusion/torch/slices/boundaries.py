"""Operators that consist of concatenated pieces, and the boundaries of the pieces."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch.fx import Node

from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import (
    short_name,
    tensor_of,
    tensor_operands,
    tensors_of,
)
from blockbuster_fusion.torch.capture.operators import are_of_one_dtype, concatenated
from blockbuster_fusion.torch.slices.band import (
    Band,
    SymbolicInt,
    extents,
    symbolic,
    through_view,
)
from blockbuster_fusion.torch.slices.dims import RESHAPING, CannotMove, source_dim
from blockbuster_fusion.torch.slices.survey import Survey

NOT_ELEMENTWISE = frozenset(
    {"embedding", "index_select", "gather", "index", "index_put", "constant_pad_nd", "cat"}
)
"""Pointwise operators that read their operands at other positions than they write."""


@dataclass(frozen=True)
class Boundaries:
    """The positions along a dimension at which the pieces of a node meet."""

    dim: int
    bounds: tuple[SymbolicInt, ...]
    period: SymbolicInt | None
    is_computed: bool
    """True if kernels compute every piece, so that each can be stored in its place."""

    def bands(self) -> list[Band]:
        """The pieces."""
        pairs = zip(self.bounds, self.bounds[1:], strict=False)
        return [Band(self.dim, a, b, self.period) for a, b in pairs]


@dataclass(frozen=True)
class Concatenations:
    """The nodes of a graph that consist of concatenated pieces."""

    survey: Survey
    stored: Collection[Node]
    """Nodes that are stored, so that slices of them are views."""
    undivided: Collection[Node]
    """Operators that are computed whole though an operand consists of pieces."""
    _known: dict[Node, Boundaries | None] = field(default_factory=dict, init=False, repr=False)

    @property
    def analysis(self) -> Analysis:
        return self.survey.analysis

    @cached_property
    def divided(self) -> set[Node]:
        """The operators that are computed piece by piece.

        They consist of computed pieces, and so do all operators that read them elementwise.
        """
        found: set[Node] = set()
        for node in reversed(self.survey.joined):
            if not tensors_of(node) or self.analysis.kind(node) is not Kind.POINTWISE:
                continue
            pieces = self.boundaries(node) if short_name(node) != "cat" else None
            is_computed = pieces is not None and pieces.is_computed
            if is_computed and self.elementwise_readers(node) <= found:
                found.add(node)
        return found

    def elementwise_readers(self, node: Node) -> set[Node]:
        """The operators that read a node, or a view of it, element by element."""
        found: set[Node] = set()
        stack, seen = [node], set[Node]()
        while stack:
            for user in stack.pop().users:
                kind = Kind.MISC if user.op == "output" else self.analysis.kind(user)
                is_apart = short_name(user) in ("cat", "index_put")
                if kind in (Kind.POINTWISE, Kind.REDUCTION) and not is_apart:
                    found.add(user)
                elif kind is Kind.VIEW and user not in seen:
                    seen.add(user)
                    stack.append(user)
        return found

    def boundaries(self, node: Node) -> Boundaries | None:
        """The boundaries of a node's pieces, or None if it has none."""
        if node not in self.survey.joined:
            return None
        if node not in self._known:
            try:
                self._known[node] = self._boundaries(node)
            except CannotMove:
                self._known[node] = None
        return self._known[node]

    def _boundaries(self, node: Node) -> Boundaries | None:
        if node.op != "call_function" or len(tensors_of(node)) != 1 or node in self.stored:
            return None
        kind = self.analysis.kind(node)
        name = short_name(node)
        if name == "cat" and kind in (Kind.POINTWISE, Kind.MISC):
            return self._of_cat(node)
        if kind is Kind.VIEW and not self.analysis.is_indexed(node):
            return self._of_view(node)
        if kind is not Kind.POINTWISE or name in NOT_ELEMENTWISE or node in self.undivided:
            return None
        rank = len(tensor_of(node).shape)
        found: Boundaries | None = None
        for source in tensor_operands(node):
            own = self.boundaries(source)
            if own is not None and (found is None or own.is_computed > found.is_computed):
                found = replace(own, dim=own.dim + rank - tensor_of(source).dim())
        return found

    def _of_cat(self, node: Node) -> Boundaries | None:
        pieces, dim = concatenated(node)
        if len(pieces) < 2 or not are_of_one_dtype(pieces):
            return None
        bounds = [symbolic(0)]
        for piece in pieces:
            bounds.append(bounds[-1] + extents(tensor_of(piece))[dim])
        is_computed = all(self.analysis.roots(p) for p in pieces)
        return Boundaries(dim, tuple(bounds), None, is_computed)

    def _of_view(self, node: Node) -> Boundaries | None:
        """The pieces of the array that a view shows, if they are pieces of the view as well."""
        sources = tensor_operands(node)
        found = self.boundaries(sources[0]) if len(sources) == 1 else None
        if found is None:
            return None
        before, after = extents(tensor_of(sources[0])), extents(tensor_of(node))
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
