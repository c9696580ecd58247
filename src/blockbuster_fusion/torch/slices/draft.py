"""The new graph as a draft: nodes that are to come, beside those of the old graph that stay.

Equal layers have equal slices, and most nodes of a graph have nothing to do with slices. So a node
stays where it is, unless something takes its place. A draft that is thrown away costs little: its
nodes have no fake values before one is asked for, and the graph is changed when all are known.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from blockbuster_fusion.torch.capture.fakes import NONE, fake_result, meta_like
from blockbuster_fusion.torch.capture.nodes import memory_of, short_name, storages_of, tensor_of
from blockbuster_fusion.torch.slices.band import Bands, SymbolicInt, extents
from blockbuster_fusion.torch.slices.dims import RESHAPING, CannotMove
from blockbuster_fusion.torch.slices.survey import Survey

aten = torch.ops.aten


@dataclass(eq=False, slots=True)
class Draft:
    """A node that is to come, with the origin of an old one."""

    target: Any
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    like: Node
    function: Any
    """The function that has the form of its result."""
    sources: "tuple[NewNode, ...]"
    """The nodes that it reads."""
    place: tuple[int, ...]
    """Its place in the order of the new graph; the old node of number n has 2 n + 1."""
    values: list[Any] = field(default_factory=list)
    """Its fake value, as soon as it is known."""


NewNode = Node | Draft
"""A node of the new graph: an old one that stays, or one that is to come."""


class GraphDraft:
    """A draft of a graph in which slices have moved."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.moved: dict[Node, NewNode] = {}
        """The nodes that do not stay, with those that take their places."""
        self.stale: set[Node] = set()
        """The nodes that stay, and show memory of others that do not."""
        self.renewed: dict[Node, Any] = {}
        """The fake values of these, as far as they are known."""
        self.sizes: dict[SymbolicInt, Node] = {}
        """The nodes that are sizes."""
        self.known: dict[Any, Draft] = {}
        """New nodes by operator and arguments, so that none is computed twice."""
        self.latest: dict[Node, Draft] = {}
        """The last of the new nodes that belong to an old one."""
        self.behind: Counter[NewNode] = Counter()
        """The number of new nodes that were put right behind a node."""
        self.at: Node | None = None
        """The old node that the draft has come to; those before it have their counterparts."""

    def counterpart(self, node: Node) -> NewNode:
        """The node of the new graph for an old one."""
        return self.moved.get(node, node)

    def reach(self, node: Node) -> None:
        """The draft comes to an old node."""
        self.at = node

    def pass_by(self, node: Node, made: NewNode) -> None:
        """The draft leaves an old node, for which a new one was made, or which stays."""
        if made is not node:
            self.moved[node] = made
        elif self.moved and self.shows_moved(node):
            self.stale.add(node)
        if node in self.survey.sizes:
            self.sizes.setdefault(self.survey.sizes[node], node)

    def shows_moved(self, node: Node) -> bool:
        """True if a node is a view of something that has moved, or of such a view."""
        changed = [n for n in node.all_input_nodes if n in self.moved or n in self.stale]
        return any(storages_of(n) & storages_of(node) for n in changed)

    # ---------------------------------------------------------------- values

    def tensor(self, x: NewNode) -> torch.Tensor:
        """The fake value of a node with one result."""
        made = self.value(x)
        assert isinstance(made, torch.Tensor)
        return made

    def value(self, x: NewNode) -> Any:
        """The fake value of a node of the new graph."""
        if isinstance(x, Draft):
            if not x.values:
                x.values.append(self.result(x.function, x.arguments, x.like, x.options))
            return x.values[0]
        if x not in self.stale:
            return x.meta.get("val")
        if x not in self.renewed:
            self.renewed[x] = self.shown(x)
        return self.renewed[x]

    def shown(self, node: Node) -> Any:
        """The fake value of a view of something that may lie in other memory now."""
        sources = [n for n in node.all_input_nodes if storages_of(n) & storages_of(node)]
        if all(memory_of(self.value(self.counterpart(n))) == storages_of(n) for n in sources):
            return node.meta.get("val")
        target = torch.Tensor.reshape if short_name(node) in RESHAPING else node.target
        given = _mapped((node.args, dict(node.kwargs)), self.counterpart)
        return self.result(target, given[0], node, given[1])

    def result(
        self, target: Any, arguments: tuple[Any, ...], like: Node, options: Mapping[str, Any]
    ) -> Any:
        """The fake result of an operator on nodes of the new graph."""
        given, named = _mapped((arguments, dict(options)), self.value)
        return fake_result(target, given, like, named)

    # ---------------------------------------------------------------- new nodes

    def emit(
        self,
        target: Any,
        arguments: tuple[Any, ...],
        like: Node,
        options: Mapping[str, Any] = NONE,
    ) -> Draft:
        """A call in the new graph, which belongs to an old node."""
        return self.call(target, arguments, options, like, target)

    def reshaped(self, x: NewNode, lengths: Sequence[SymbolicInt], like: Node) -> Draft:
        """A view in another shape; its memory is decided by the part that stores it."""
        sizes = [self.size(s) for s in lengths]
        return self.call(aten.view.default, (x, sizes), {}, like, torch.Tensor.reshape)

    def call(
        self,
        target: Any,
        arguments: tuple[Any, ...],
        options: Mapping[str, Any],
        like: Node,
        function: Any,
    ) -> Draft:
        """The node of a call: a known one, or a new one behind those of the same old node."""
        key = (target, _frozen(arguments), _frozen([*options.items()]))
        if key in self.known:
            return self.known[key]
        sources: list[NewNode] = []
        _mapped((arguments, [*options.values()]), sources.append)
        place: tuple[int, ...]
        if like is self.at:
            place = (2 * self.survey.number[like], len(self.known))
        else:
            before = [self.latest.get(like) or self.counterpart(like), *sources]
            last = max(before, key=self.place)
            self.behind[last] += 1
            place = (*self.place(last), -self.behind[last])  # before what was put there earlier
        made = Draft(target, arguments, dict(options), like, function, tuple(sources), place)
        if like is not self.at:
            self.latest[like] = made
        self.known[key] = made
        return made

    def place(self, x: NewNode) -> tuple[int, ...]:
        """The place of a node in the order of the new graph."""
        return x.place if isinstance(x, Draft) else (2 * self.survey.number[x] + 1,)

    def size(self, x: SymbolicInt) -> int | Node:
        """A length or a position as an argument, or CannotMove if no node computes it."""
        if x.is_Integer:
            return int(x)
        if x not in self.sizes:
            raise CannotMove
        return self.sizes[x]

    def slice_in_memory(self, node: Node, bands: Bands) -> NewNode:
        """A slice of a node that lies in memory."""
        if node is self.at:
            raise CannotMove  # it is being made of its own slices, one of which cannot move
        made, lengths = self.counterpart(node), extents(tensor_of(node))
        for band in bands:
            length = band.length(lengths[band.dim])
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
                shape = [*lengths[: band.dim], length, *lengths[band.dim + 1 :]]
                made = self.reshaped(made, shape, node)
            lengths[band.dim] = length
        return made

    def sliced(
        self, x: NewNode, dim: int, start: SymbolicInt, stop: SymbolicInt, like: Node
    ) -> Draft:
        return self.emit(aten.slice.Tensor, (x, dim, self.size(start), self.size(stop)), like)

    # ---------------------------------------------------------------- the whole

    @cached_property
    def readers(self) -> dict[NewNode, list[NewNode]]:
        """The nodes of the new graph that are needed, with those that read them."""
        stack: list[NewNode] = [*self.survey.needed]
        found: dict[NewNode, list[NewNode]] = {node: [] for node in stack}
        while stack:
            x = stack.pop()
            for source in self.sources(x):
                if source not in found:
                    found[source] = []
                    stack.append(source)
                found[source].append(x)
        return found

    def sources(self, x: NewNode) -> Iterable[NewNode]:
        """The nodes that a node of the new graph reads."""
        return x.sources if isinstance(x, Draft) else map(self.counterpart, x.all_input_nodes)

    def write(self) -> dict[Draft, Node]:
        """Changes the graph, and returns its new nodes. If an error is raised, it is as before."""
        graph, old, alive = self.survey.analysis.module.graph, self.survey.nodes, self.readers
        drafts = sorted((x for x in alive if isinstance(x, Draft)), key=lambda x: x.place)
        values = [self.value(x) for x in drafts]
        renewed = {node: self.value(node) for node in self.stale if node in alive}
        made: dict[Draft, Node] = {}

        def node_of(x: NewNode) -> Node:
            return made[x] if isinstance(x, Draft) else x

        for x, value in zip(drafts, values, strict=True):
            given, named = _mapped((x.arguments, dict(x.options)), node_of)
            with graph.inserting_before(old[(x.place[0] + 1) // 2]):
                made[x] = graph.call_function(x.target, given, named)
            made[x].meta = meta_like(x.like, value)
        changed = [
            n for n in old if n in alive and not self.moved.keys().isdisjoint(n.all_input_nodes)
        ]
        for node in changed:
            node.args = _mapped(node.args, lambda n: node_of(self.counterpart(n)))
            node.kwargs = _mapped(node.kwargs, lambda n: node_of(self.counterpart(n)))
        for node, value in renewed.items():
            node.meta = meta_like(node, value)
        for node in reversed(old):
            if node not in alive:
                graph.erase_node(node)
        for source in {n for x in (*made.values(), *changed) for n in x.all_input_nodes}:
            for user in sorted(source.users):  # readers are in the order of the graph
                source.users[user] = source.users.pop(user)
        return made


def _mapped(given: Any, function: Callable[[Any], Any]) -> Any:
    """Arguments with something else in place of nodes."""
    return map_aggregate(given, lambda x: function(x) if isinstance(x, Node | Draft) else x)


def _frozen(given: Any) -> Any:
    """Arguments as a key."""
    if isinstance(given, list | tuple):
        return tuple(_frozen(x) for x in given)
    return type(given), repr(given) if isinstance(given, float) else given  # -0.0 is not 0.0
