"""Finds slices whose motion would duplicate work or gain nothing, so that it can be undone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch.fx import Node

from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.nodes import short_name
from blockbuster_fusion.torch.slices.band import Bands, may_overlap
from blockbuster_fusion.torch.slices.dims import PERMUTING, RESHAPING, SAME_POSITIONS, NodeSlice
from blockbuster_fusion.torch.slices.draft import NewNode
from blockbuster_fusion.torch.slices.rewrite import SliceMotion


@dataclass(frozen=True)
class Undo:
    """A node that is computed twice, or split for nothing."""

    node: Node
    dividers: frozenset[Node]
    """The operators that are computed piece by piece, and so asked for slices of it."""


def motions_to_undo(motion: SliceMotion) -> list[Undo]:
    """The last nodes of each region whose slices should not have moved."""
    return _Search(motion).found()


class _Search:
    def __init__(self, motion: SliceMotion) -> None:
        self.motion, self.analysis = motion, motion.analysis
        self.regions = motion.analysis.regions

    def found(self) -> list[Undo]:
        slices: dict[Node, list[Bands]] = {}
        for (node, bands), made in self.motion.slices.items():
            if self.motion.new.readers.get(made) and self.is_computed(node):
                slices.setdefault(node, []).append(bands)
        found: list[Undo] = []
        above: set[Node] = set()
        for node in reversed(self.analysis.nodes):
            if node in above:
                above.update(self.sources(node))
            elif node in slices and self.is_harmful(node, slices[node]):
                found.append(Undo(node, frozenset(self.dividers(node, slices[node]))))
                above.update(self.sources(node))
        return found

    def sources(self, node: Node) -> Iterator[Node]:
        """The operands of a node in its own region."""
        return (n for n in node.all_input_nodes if self.regions[n] == self.regions[node])

    def is_computed(self, node: Node) -> bool:
        """True if a node costs something: no view, and nothing that is computed anew anyway."""
        return (
            node.op == "call_function"
            and node not in self.analysis.recomputed
            and node not in self.motion.concatenations.stored
            and self.analysis.kind(node) in (Kind.POINTWISE, Kind.REDUCTION, Kind.CONTRACTION)
            and short_name(node) != "cat"
        )

    def is_harmful(self, node: Node, slices: Sequence[Bands]) -> bool:
        """True if a node is computed whole as well, in slices that overlap, or split in vain."""
        motion = self.motion
        if any((node, bands) in motion.unmoved for bands in slices):
            dividers = [*self.dividers(node, slices)]
            return any(self.regions[d] == self.regions[node] for d in dividers)
        is_whole = bool(motion.new.readers.get(motion.new.counterpart(node)))
        if is_whole and node not in motion.concatenations.divided:
            return True
        if any(may_overlap(a, b) for i, a in enumerate(slices) for b in slices[:i]):
            return True
        is_product = self.analysis.kind(node) is Kind.CONTRACTION
        return is_product and not any(
            self.is_read_elementwise(motion.slices[node, bands]) for bands in slices
        )

    def is_read_elementwise(self, product: NewNode) -> bool:
        """True if an elementwise operator reads a slice of a product."""
        stack = [product]
        while stack:
            for user in self.motion.new.readers[stack.pop()]:
                is_result = isinstance(user, Node) and user.op == "output"
                if is_result or (name := short_name(user)) == "cat":
                    continue
                if name in RESHAPING | SAME_POSITIONS | PERMUTING:
                    stack.append(user)
                elif name not in ("mm", "bmm", "addmm", "index_put"):
                    return True
        return False

    def dividers(self, node: Node, slices: Sequence[Bands]) -> Iterator[Node]:
        """The operators that are computed piece by piece and so need slices of a node."""
        stack: list[NodeSlice | Node] = [(node, bands) for bands in slices]
        seen: set[NodeSlice | Node] = set()
        while stack:
            key = stack.pop()
            if key in seen:
                continue
            seen.add(key)
            if isinstance(key, Node):
                if key in self.motion.concatenations.divided:
                    yield key
            else:
                stack.extend(self.motion.requesters.get(key, ()))
