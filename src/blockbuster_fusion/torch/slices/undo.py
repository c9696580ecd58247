"""What should not have moved: nodes that would be computed twice, or split for nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch.fx import Node

from blockbuster_fusion.select.parts import Kind
from blockbuster_fusion.torch.capture.graph import short_name
from blockbuster_fusion.torch.slices.band import Bands, meet
from blockbuster_fusion.torch.slices.dims import RESHAPING, SAME_PLACE, TURNING
from blockbuster_fusion.torch.slices.rewrite import Moved, Part


@dataclass(frozen=True)
class Doubt:
    """A node that is computed twice, or split for nothing."""

    node: Node
    dividers: frozenset[Node]
    """The operators that are computed piece by piece, and so needed parts of it."""


def doubts(moved: Moved) -> list[Doubt]:
    """What should stay where it is: the lowest such nodes of each region."""
    return _Doubts(moved).found()


class _Doubts:
    def __init__(self, moved: Moved) -> None:
        self.moved, self.analysis = moved, moved.analysis

    def found(self) -> list[Doubt]:
        parts: dict[Node, list[Bands]] = {}
        for (node, bands), made in self.moved.parts.items():
            if made.users and made in self.moved.alive and self.is_computed(node):
                parts.setdefault(node, []).append(bands)
        found: list[Doubt] = []
        above: set[Node] = set()
        for node in reversed(self.analysis.nodes):
            if node in above:
                above.update(self.sources(node))
            elif node in parts and self.is_doubtful(node, parts[node]):
                found.append(Doubt(node, frozenset(self.dividers(node, parts[node]))))
                above.update(self.sources(node))
        return found

    def sources(self, node: Node) -> Iterator[Node]:
        return (
            n for n in node.all_input_nodes if self.moved.regions[n] == self.moved.regions[node]
        )

    def is_computed(self, node: Node) -> bool:
        """Whether a node costs something: views, and what is computed wherever needed, do not."""
        return (
            node.op == "call_function"
            and node not in self.analysis.mobile
            and node not in self.moved.pieces.stored
            and self.analysis.kind(node) in (Kind.POINTWISE, Kind.REDUCTION, Kind.CONTRACTION)
            and short_name(node) != "cat"
        )

    def is_doubtful(self, node: Node, parts: Sequence[Bands]) -> bool:
        """Whether a node is computed whole as well, or in parts that overlap or meet nothing."""
        if any((node, p) in self.moved.unmoved for p in parts):
            askers = [*self.dividers(node, parts)]
            return any(self.moved.regions[a] == self.moved.regions[node] for a in askers)
        is_whole = self.moved.wholes[node] in self.moved.alive and self.moved.wholes[node].users
        if is_whole and node not in self.moved.pieces.divided:
            return True
        if any(meet(a, b) for i, a in enumerate(parts) for b in parts[:i]):
            return True
        is_product = self.analysis.kind(node) is Kind.CONTRACTION
        return is_product and not any(
            self.meets_something(self.moved.parts[node, p]) for p in parts
        )

    def meets_something(self, part: Node) -> bool:
        """Whether an elementwise operator reads a part of a product."""
        stack = [part]
        while stack:
            for user in stack.pop().users:
                if user.op != "call_function" or short_name(user) == "cat":
                    continue
                name = short_name(user)
                if name in RESHAPING | SAME_PLACE | TURNING:
                    stack.append(user)
                elif name not in ("mm", "bmm", "addmm", "index_put"):
                    return True
        return False

    def dividers(self, node: Node, parts: Sequence[Bands]) -> Iterator[Node]:
        """The operators that are computed piece by piece and so need parts of a node."""
        stack: list[Part | Node] = [(node, bands) for bands in parts]
        seen: set[Part | Node] = set()
        while stack:
            key = stack.pop()
            if key in seen:
                continue
            seen.add(key)
            if isinstance(key, Node):
                if key in self.moved.pieces.divided:
                    yield key
            else:
                stack.extend(self.moved.askers.get(key, ()))
