"""Slices move up to what lies in memory, and concatenations down to where they are stored.

A part of a sum is the sum of parts, and a part of a product is a product with a part of the weight.
So `gate_up.chunk(2)` is two products that meet in one kernel, a rotary embedding is the product's
two halves, and what is computed from a concatenation is computed piece by piece, each stored in its
place. A sum along a concatenation is the sum of the pieces' sums: so attention sinks that a model
puts behind its scores are a term of the softmax, and no scores are stored.

The graph is built anew: each old node has a form in the new graph, and parts of it (bands.py) have
theirs. At first everything moves that can. Where this would compute something twice, or split a
product for nothing, what asked for it is remembered as staying, and the graph is built again.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch.fx import Graph, GraphModule, Node

from blockbuster_fusion.frontends.torch.bands import (
    Band,
    Bands,
    Place,
    bands_of,
    bands_through_view,
    extents,
    lengths_of,
    meet,
    place,
    through_view,
)
from blockbuster_fusion.frontends.torch.fakes import NONE, meta_like, worked_out
from blockbuster_fusion.frontends.torch.graph import Analysis, short_name, tensors_of
from blockbuster_fusion.select.parts import Kind

aten = torch.ops.aten

MOST_ROUNDS = 8
"""How often a graph is built before everything that is left in doubt stays."""
SAME_PLACE = frozenset({"clone", "alias", "detach", "_to_copy", "lift_fresh_copy", "contiguous"})
RESHAPING = frozenset({"view", "_unsafe_view", "reshape"})
LOOKUPS = frozenset({"embedding", "index_select", "gather", "index", "constant_pad_nd", "cat"})
REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "any", "all", "prod"})
COMBINED = {"sum": aten.add.Tensor, "amax": aten.maximum.default, "amin": aten.minimum.default}
"""How the reductions of two pieces become that of both."""


def move_pieces(module: GraphModule, static: Sequence[int], *, splits: bool) -> GraphModule:
    """The graph with slices moved up and concatenations down; itself where nothing moves.

    `splits` says whether products with weights may be split.
    """
    given = [n for n in module.graph.nodes if n.op == "placeholder"]
    analysis = Analysis(module, frozenset(given[i] for i in static if i < len(given)))
    if not any(_is_cut(node) for node in analysis.nodes):
        return module
    stays = _Stays(set(), set())
    for number in range(MOST_ROUNDS):
        moved = _Moved(analysis, stays, splits)
        doubts = moved.doubts()
        if not doubts:
            return moved.module() if moved.has_moved else module
        stays = stays.with_all(doubts, everything=number == MOST_ROUNDS - 2)
    return module


def _is_cut(node: Node) -> bool:
    names = ("slice", "select", "split", "split_with_sizes", "unbind", "cat")
    return short_name(node) in names


class _InTheWay(Exception):
    """A part that has no form further up: it is a part of what lies in memory."""


@dataclass(frozen=True)
class _Cuts:
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
class _Doubt:
    """A node that is computed twice, or split for nothing, and what asked for its parts."""

    node: Node
    askers: frozenset[Node]


@dataclass(frozen=True)
class _Stays:
    """What earlier rounds have found not to be worth it."""

    stored: set[Node]
    """Nodes whose parts are parts of what lies in memory."""
    undivided: set[Node]
    """Operators that are computed whole though an operand consists of pieces."""

    def with_all(self, doubts: Sequence[_Doubt], everything: bool) -> "_Stays":
        stored, undivided = {*self.stored}, {*self.undivided}
        for doubt in doubts:
            undivided |= doubt.askers
            if everything or not doubt.askers:
                stored.add(doubt.node)
        return _Stays(stored, undivided)


_Key = tuple[Node, Bands]


class _Moved:
    """One way to move the pieces of a graph."""

    def __init__(self, analysis: Analysis, stays: _Stays, splits: bool) -> None:
        self.analysis, self.stays, self.splits = analysis, stays, splits
        self.regions = analysis.regions()
        self.graph = Graph()
        self.wholes: dict[Node, Node] = {}
        self.parts: dict[_Key, Node] = {}
        self.unmoved: set[_Key] = set()
        """Parts of what lies in memory."""
        self.askers: dict[_Key, dict[_Key | Node, None]] = {}
        self.known_cuts: dict[Node, _Cuts | None] = {}
        self.numbers: dict[Place, Node] = {}
        self.known: dict[Any, Node] = {}
        """New nodes by what they compute: what two parts have in common is computed once."""
        self.latest: dict[Node, Node] = {}
        """The last of the new nodes that stand where an old one does."""
        self.asking: list[_Key | Node] = []
        self.has_moved = False
        self.divided = self.find_divided()
        self.is_heavy: dict[Node, bool] = {}
        for node in analysis.module.graph.nodes:
            self.is_heavy[node] = node.op == "call_function" and (
                analysis.kind(node) in (Kind.CONTRACTION, Kind.MISC)
                or any(self.is_heavy[n] for n in node.all_input_nodes)
            )
            self.wholes[node] = self.made(node)
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                self.numbers.setdefault(value.node.expr, self.wholes[node])
        self.graph.eliminate_dead_code()
        self.alive = set(self.graph.nodes)

    def module(self) -> GraphModule:
        made = GraphModule(self.analysis.module, self.graph)
        made.meta = self.analysis.module.meta
        return made

    # ---------------------------------------------------------------- whole nodes

    def made(self, node: Node) -> Node:
        """An old node in the new graph."""
        if node.op != "call_function" or not tensors_of(node) or self.analysis.refusal(node):
            return self.copy(node)
        self.asking = [node]
        try:
            shown = self.shown(node)
            if shown is not None:
                found = self.part(*shown)
                return self.copy(node) if shown in self.unmoved else self.squeezed(node, found)
            if self.is_divided(node):
                return self.joined(node)
            if short_name(node) == "cat":
                return self.concatenated(node)
            combined = self.combined(node)
        except _InTheWay:
            return self.copy(node)
        return self.copy(node) if combined is None else combined

    def copy(self, node: Node) -> Node:
        return self.graph.node_copy(node, lambda n: self.wholes[n])

    def concatenated(self, node: Node) -> Node:
        """An old concatenation, without pieces that are empty."""
        pieces, dim = self.analysis.joined(node)
        if len({t.dtype for p in pieces for t in tensors_of(p)}) > 1:
            return self.copy(node)
        if len(pieces) == 1:
            return self.wholes[pieces[0]]
        made = self.emit(aten.cat.default, ([self.wholes[p] for p in pieces], dim), node)
        is_computed = all(self.analysis.roots(p) for p in pieces)
        if is_computed and not self.elementwise_readers(node):
            made.meta["is_join"] = True  # stored in their places, rather than chosen from
        return made

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

    def is_divided(self, node: Node) -> bool:
        """Whether an operator is computed piece by piece, and its pieces are then joined."""
        return node in self.divided

    def find_divided(self) -> set[Node]:
        """What consists of computed pieces for all that read it elementwise as well."""
        found: set[Node] = set()
        for node in reversed(self.analysis.nodes):
            if not tensors_of(node) or self.analysis.kind(node) is not Kind.POINTWISE:
                continue
            cuts = self.cuts(node) if short_name(node) != "cat" else None
            if cuts is not None and cuts.is_computed and self.elementwise_readers(node) <= found:
                found.add(node)
        return found

    def joined(self, node: Node) -> Node:
        cuts = self.cuts(node)
        assert cuts is not None
        pieces = [self.part(node, (band,)) for band in cuts.bands()]
        if cuts.period is None:
            made = self.emit(aten.cat.default, (pieces, cuts.dim), node)
            made.meta["is_join"] = True
            return made
        full = extents(tensors_of(node)[0])
        outer = full[cuts.dim] / cuts.period
        split = [
            self.reshaped(p, [*full[: cuts.dim], outer, b.width, *full[cuts.dim + 1 :]], node)
            for p, b in zip(pieces, cuts.bands(), strict=True)
        ]
        made = self.emit(aten.cat.default, (split, cuts.dim + 1), node)
        made.meta["is_join"] = True
        return self.reshaped(made, full, node)

    def combined(self, node: Node) -> Node | None:
        """A reduction along a concatenation, from the reductions of its pieces."""
        name = short_name(node)
        found = self.reduced_dims(node)
        if found is None or name not in COMBINED:
            return None
        source, dims = found
        cuts = self.cuts(source)
        if cuts is None or cuts.dim not in dims:
            return None
        made: Node | None = None
        for band in cuts.bands():
            piece = self.part(source, (band,))
            reduced = self.reduced(node, piece)
            made = reduced if made is None else self.emit(COMBINED[name], (made, reduced), node)
        self.has_moved = True
        return made

    def reduced(self, node: Node, piece: Node) -> Node:
        """A reduction of one piece; of a piece of length one it is the piece."""
        _, dims = self.reduced_dims(node) or (node, [])
        (tensor,) = tensors_of(piece)
        keeps = tensors_of(node)[0].dim() == tensor.dim()
        if keeps and all(tensor.shape[d] == 1 for d in dims):
            return piece
        return self.emit(node.target, (piece, *node.args[1:]), node, node.kwargs)

    def share(self, softmax: Node, band: Band) -> Node:
        """A piece of the softmax along a concatenation: its share in the sum of all pieces."""
        source, (dim,) = self.reduced_dims(softmax) or (softmax, [-1])
        cuts = self.cuts(source)
        if cuts is None or cuts.dim != dim or band not in cuts.bands():
            raise _InTheWay
        powers = [self.emit(aten.exp.default, (self.part(source, (b,)),), softmax)
                  for b in cuts.bands()]  # fmt: skip
        total: Node | None = None
        for power in powers:
            is_one = extents(tensors_of(power)[0])[dim] == 1
            summed = power if is_one else self.emit(
                aten.sum.dim_IntList, (power, [dim], True), softmax
            )  # fmt: skip
            total = summed if total is None else self.emit(
                aten.add.Tensor, (total, summed), softmax
            )  # fmt: skip
        own = powers[cuts.bands().index(band)]
        return self.emit(aten.div.Tensor, (own, total), softmax)

    def squeezed(self, node: Node, found: Node) -> Node:
        """What a `select` shows has lost a dimension."""
        dim = _lost_dim(node)
        return found if dim is None else self.emit(aten.squeeze.dim, (found, dim), node)

    # ---------------------------------------------------------------- what consists of pieces

    def cuts(self, node: Node) -> _Cuts | None:
        if node not in self.known_cuts:
            try:
                self.known_cuts[node] = self.find_cuts(node)
            except _InTheWay:
                self.known_cuts[node] = None
        return self.known_cuts[node]

    def find_cuts(self, node: Node) -> _Cuts | None:
        if node.op != "call_function" or len(tensors_of(node)) != 1 or node in self.stays.stored:
            return None
        kind = self.analysis.kind(node)
        name = short_name(node)
        if name == "cat" and kind in (Kind.POINTWISE, Kind.MISC):
            return self.cuts_of_cat(node)
        if kind is Kind.VIEW and not self.analysis.is_indexed(node):
            return self.cuts_of_view(node)
        if kind is not Kind.POINTWISE or name in LOOKUPS or node in self.stays.undivided:
            return None
        rank = len(tensors_of(node)[0].shape)
        found: _Cuts | None = None
        for source in node.all_input_nodes:
            cuts = self.cuts(source) if tensors_of(source) else None
            if cuts is not None and (found is None or cuts.is_computed > found.is_computed):
                found = replace(cuts, dim=cuts.dim + rank - tensors_of(source)[0].dim())
        return found

    def cuts_of_cat(self, node: Node) -> _Cuts | None:
        pieces, dim = self.analysis.joined(node)
        if len(pieces) < 2 or self.analysis.refusal(node) is not None:
            return None
        bounds = [place(0)]
        for piece in pieces:
            bounds.append(bounds[-1] + extents(tensors_of(piece)[0])[dim])
        is_computed = all(self.analysis.roots(p) for p in pieces)
        return _Cuts(dim, tuple(bounds), None, is_computed)

    def cuts_of_view(self, node: Node) -> _Cuts | None:
        """The pieces of what a view shows, where they are pieces of the view as well."""
        sources = [n for n in node.all_input_nodes if tensors_of(n)]
        found = self.cuts(sources[0]) if len(sources) == 1 else None
        if found is None:
            return None
        before, after = extents(tensors_of(sources[0])[0]), extents(tensors_of(node)[0])
        if short_name(node) not in RESHAPING:
            for dim in range(len(after)):
                if self.source_dim(node, dim) == found.dim:
                    return replace(found, dim=dim)
            return None
        bands = [through_view(band, before, after) for band in found.bands()]
        plain = [b for b in bands if b is not None]
        if len(plain) < len(bands) or len({(b.dim, b.period) for b in plain}) > 1:
            return None
        bounds = (plain[0].start, *(b.stop for b in plain))
        return replace(found, dim=plain[0].dim, bounds=bounds, period=plain[0].period)

    # ---------------------------------------------------------------- parts

    def part(self, node: Node, bands: Bands) -> Node:
        """Some bands of an old node, in the new graph."""
        bands = self.narrowing(node, bands)
        if not bands:
            return self.wholes[node]
        key = (node, bands)
        self.askers.setdefault(key, {})[self.asking[-1]] = None
        if key not in self.parts:
            self.asking.append(key)
            try:
                self.parts[key] = self.moved(node, bands)
                self.has_moved = True
            except _InTheWay:
                self.parts[key] = self.in_memory(node, bands)
                self.unmoved.add(key)
            self.asking.pop()
        return self.parts[key]

    def narrowing(self, node: Node, bands: Bands) -> Bands:
        """The bands that leave something out."""
        lengths = extents(tensors_of(node)[0])
        found = []
        for band in bands:
            if not band.is_all(lengths[band.dim]):
                found.append(band)
                lengths[band.dim] = band.length(lengths[band.dim])
        return tuple(found)

    def moved(self, node: Node, bands: Bands) -> Node:
        """The part of an operator's result from parts of its operands."""
        analysis = self.analysis
        if node.op != "call_function" or node in self.stays.stored or not self.may_move(node):
            raise _InTheWay
        if self.is_one_of_several(node):
            raise _InTheWay
        shown = self.shown(node)
        if shown is not None:
            return self.moved_slice(node, shown, bands)
        name, kind = short_name(node), analysis.kind(node)
        if name == "cat":
            return self.moved_cat(node, bands)
        if kind is Kind.VIEW:
            return self.moved_view(node, bands)
        if kind is Kind.POINTWISE and name not in LOOKUPS:
            return self.moved_pointwise(node, bands)
        if kind is Kind.REDUCTION:
            return self.moved_reduction(node, bands)
        if kind is Kind.CONTRACTION:
            return self.moved_product(node, bands)
        if name == "full":
            return self.moved_full(node, bands)
        raise _InTheWay

    def may_move(self, node: Node) -> bool:
        """Whether a node is in the layer that asks, or is light enough to be split anywhere."""
        if self.analysis.has_effect(node) or self.analysis.refusal(node):
            return False
        asker = self.asking[0]
        assert isinstance(asker, Node)
        return not self.is_heavy[node] or self.regions[node] == self.regions[asker]

    def is_one_of_several(self, node: Node) -> bool:
        return len(tensors_of(node)) != 1 or (
            node.target is operator.getitem and self.analysis.is_element(node)
        )

    def in_memory(self, node: Node, bands: Bands) -> Node:
        """A part of an array as it lies in memory."""
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

    def moved_slice(self, node: Node, shown: tuple[Node, Bands], bands: Bands) -> Node:
        """A part of a slice as a part of what it is a slice of."""
        source, (inner,) = shown
        has_lost = _lost_dim(node) is not None
        outer = [replace(b, dim=b.dim + (has_lost and b.dim >= inner.dim)) for b in bands]
        made = [inner]
        for band in outer:
            within = band.within(inner) if band.dim == inner.dim and len(made) == 1 else None
            if within is None:
                made.append(band)
            else:
                made[0] = inner = within
        return self.squeezed(node, self.part(source, bands_of(made)))

    def moved_cat(self, node: Node, bands: Bands) -> Node:
        pieces, dim = self.analysis.joined(node)
        along, *more = [*(b for b in bands if b.dim == dim), None]
        others = tuple(b for b in bands if b.dim != dim)
        if len(more) > 1:
            raise _InTheWay
        found: list[Node] = []
        at = place(0)
        for piece in pieces:
            end = at + extents(tensors_of(piece)[0])[dim]
            if along is None:
                found.append(self.part(piece, others))
            else:
                start, stop = _overlap(along, at, end)
                if start != stop:
                    band = Band(dim, start - at, stop - at)
                    found.append(self.part(piece, bands_of([band, *others])))
            at = end
        if len(found) == 1:
            return found[0]
        return self.emit(aten.cat.default, (found, dim), node)

    def moved_view(self, node: Node, bands: Bands) -> Node:
        (source,) = [n for n in node.all_input_nodes if tensors_of(n)][:1]
        before, after = extents(tensors_of(source)[0]), extents(tensors_of(node)[0])
        name, lengths = short_name(node), lengths_of(after, bands)
        if name in RESHAPING:
            found = bands_through_view(bands, after, before)
            if found is None:
                raise _InTheWay
        else:
            dims = [(self.source_dim(node, b.dim), b) for b in bands]
            found = bands_of(replace(b, dim=dim) for dim, b in dims if dim is not None)
        made = self.part(source, found)
        if name in RESHAPING:
            return self.reshaped(made, lengths, node)
        if name == "expand":
            sizes = [self.number(s) for s in lengths]
            return self.emit(aten.expand.default, (made, sizes), node)
        return self.emit(node.target, (made, *node.args[1:]), node, node.kwargs)

    def source_dim(self, node: Node, dim: int) -> int | None:
        """Which dimension of its operand a dimension of a view is; None for a broadcast one."""
        source = node.args[0]
        assert isinstance(source, Node)
        before, after = tensors_of(source)[0].shape, tensors_of(node)[0].shape
        arguments: Any = node.args[1:]
        match short_name(node):
            case name if name in SAME_PLACE:
                return dim
            case "permute":
                return int(arguments[0][dim]) % len(before)
            case "transpose":
                a, b = (i % len(before) for i in arguments)
                return b if dim == a else a if dim == b else dim
            case "t":
                return len(before) - 1 - dim
            case "unsqueeze":
                at = arguments[0] % len(after)
                return None if dim == at else dim - (dim > at)
            case "squeeze" if arguments:
                given = arguments[0] if isinstance(arguments[0], list | tuple) else arguments[:1]
                gone = {d % len(before) for d in given if before[d] == 1}
                left = [d for d in range(len(before)) if d not in gone]
                return left[dim]
            case "expand":
                at = dim - (len(after) - len(before))
                is_broadcast = at < 0 or (before[at] == 1 and after[dim] != 1)
                return None if is_broadcast else at
        raise _InTheWay

    def moved_pointwise(self, node: Node, bands: Bands) -> Node:
        (tensor,) = tensors_of(node)
        lengths = extents(tensor)

        def moved(given: Any) -> Any:
            if not isinstance(given, Node):
                return given
            if not tensors_of(given):
                return self.wholes[given]
            own = extents(tensors_of(given)[0])
            less = len(lengths) - len(own)
            found = []
            for band in bands:
                at = band.dim - less
                if at >= 0 and own[at] != 1:
                    if own[at] != lengths[band.dim]:
                        raise _InTheWay
                    found.append(replace(band, dim=at))
            return self.part(given, tuple(found))

        arguments = tuple(moved(a) for a in node.args)
        options = {k: moved(v) for k, v in node.kwargs.items()}
        return self.emit(node.target, arguments, node, options)

    def reduced_dims(self, node: Node) -> tuple[Node, list[int]] | None:
        """What a reduction reduces, and along which dimensions."""
        source = node.args[0] if node.args else None
        if not isinstance(source, Node) or short_name(node) not in {*REDUCTIONS, "_softmax"}:
            return None
        rank = tensors_of(source)[0].dim()
        given: Any = node.args[1] if len(node.args) > 1 else None
        dims = [given] if isinstance(given, int) else [*(given or range(rank))]
        return source, [d % rank for d in dims]

    def moved_reduction(self, node: Node, bands: Bands) -> Node:
        found = self.reduced_dims(node)
        if found is None:
            raise _InTheWay
        source, dims = found
        rank = tensors_of(source)[0].dim()
        keeps = tensors_of(node)[0].dim() == rank
        left = [d for d in range(rank) if keeps or d not in dims]
        moved = [replace(band, dim=left[band.dim]) for band in bands]
        if any(b.dim in dims for b in moved):
            if len(bands) > 1 or short_name(node) != "_softmax":
                raise _InTheWay
            return self.share(node, bands[0])
        made = self.part(source, tuple(moved))
        return self.emit(node.target, (made, *node.args[1:]), node, node.kwargs)

    def moved_product(self, node: Node, bands: Bands) -> Node:
        name = short_name(node)
        is_plain = name in ("mm", "addmm", "bmm") and not node.kwargs
        if not is_plain or not self.splits or not self.analysis.has_weight(node):
            raise _InTheWay
        *bias, x, y = node.args
        assert isinstance(x, Node)
        assert isinstance(y, Node)
        last = 1 if name != "bmm" else 2
        of_x = tuple(b for b in bands if b.dim != last)
        of_y = [replace(b, dim=last) for b in bands if b.dim == last]
        of_y += [b for b in bands if name == "bmm" and b.dim == 0]
        arguments = [self.part(x, of_x), self.part(y, bands_of(of_y))]
        for b in bias:
            assert isinstance(b, Node)
            lengths = extents(tensors_of(b)[0])
            less = 2 - len(lengths)
            own = [replace(c, dim=c.dim - less) for c in bands if c.dim >= less]
            arguments.insert(0, self.part(b, tuple(c for c in own if lengths[c.dim] != 1)))
        return self.emit(node.target, tuple(arguments), node)

    def moved_full(self, node: Node, bands: Bands) -> Node:
        sizes = [self.number(s) for s in lengths_of(extents(tensors_of(node)[0]), bands)]
        return self.emit(node.target, (sizes, *node.args[1:]), node, node.kwargs)

    # ---------------------------------------------------------------- slices

    def shown(self, node: Node) -> tuple[Node, Bands] | None:
        """Of what a slice is a part, and which."""
        source = node.args[0] if node.args else None
        if not isinstance(source, Node) or node.op != "call_function":
            return None
        if node.target is operator.getitem:
            return self.shown_by_split(node, source)
        name = short_name(node)
        if name not in ("slice", "select"):
            return None
        lengths = extents(tensors_of(source)[0])
        arguments: Any = node.args[1:]
        dim = _dim(arguments[0] if arguments else 0, len(lengths))
        start: Any = arguments[1] if len(arguments) > 1 else 0
        if start is not None and not isinstance(start, int):
            return None
        first = place(start or 0)
        if first < 0:
            first = lengths[dim] + first
        if name == "select":
            return source, (Band(dim, first, first + 1),)
        width = extents(tensors_of(node)[0])[dim]
        step: Any = arguments[3] if len(arguments) > 3 else 1
        if step == 1:
            return (source, (Band(dim, first, first + width),)) if _is_simple(width) else None
        times = lengths[dim] / place(step) if isinstance(step, int) else None
        if times is None or not times.is_Integer or times != width or not first < step:
            return None
        return source, (Band(dim, first, first + 1, place(step)),)

    def shown_by_split(self, node: Node, split: Node) -> tuple[Node, Bands] | None:
        name = short_name(split)
        source = split.args[0] if split.args else None
        at = node.args[1]
        if name not in ("split", "split_with_sizes", "unbind") or not isinstance(source, Node):
            return None
        assert isinstance(at, int)
        dim = _dim_of_split(split)
        if name == "unbind":
            return source, (Band(dim, place(at), place(at + 1)),)
        widths = [extents(t)[dim] for t in tensors_of(split)]
        start = sum(widths[:at], start=place(0))
        return source, (Band(dim, start, start + widths[at]),)

    # ---------------------------------------------------------------- new nodes

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
            raise _InTheWay
        return self.numbers[x]

    # ---------------------------------------------------------------- doubts

    def doubts(self) -> list[_Doubt]:
        """What should stay where it is: the lowest such nodes of each region."""
        parts: dict[Node, list[Bands]] = {}
        for (node, bands), made in self.parts.items():
            if made.users and made in self.alive and self.is_computed(node):
                parts.setdefault(node, []).append(bands)
        found: list[_Doubt] = []
        above: set[Node] = set()
        for node in reversed(self.analysis.nodes):
            if node in above:
                above.update(self.sources(node))
            elif node in parts and self.is_doubtful(node, parts[node]):
                found.append(_Doubt(node, frozenset(self.dividers(node, parts[node]))))
                above.update(self.sources(node))
        return found

    def sources(self, node: Node) -> Iterator[Node]:
        return (n for n in node.all_input_nodes if self.regions[n] == self.regions[node])

    def is_computed(self, node: Node) -> bool:
        """Whether a node costs something: views, and what is computed wherever needed, do not."""
        return (
            node.op == "call_function"
            and node not in self.analysis.mobile
            and node not in self.stays.stored
            and self.analysis.kind(node) in (Kind.POINTWISE, Kind.REDUCTION, Kind.CONTRACTION)
            and short_name(node) != "cat"
        )

    def is_doubtful(self, node: Node, parts: Sequence[Bands]) -> bool:
        """Whether a node is computed whole as well, or in parts that overlap or meet nothing."""
        if any((node, p) in self.unmoved for p in parts):
            askers = [*self.dividers(node, parts)]
            return any(self.regions[a] == self.regions[node] for a in askers)
        is_whole = self.wholes[node] in self.alive and self.wholes[node].users
        if is_whole and not self.is_divided(node):
            return True
        if any(meet(a, b) for i, a in enumerate(parts) for b in parts[:i]):
            return True
        is_product = self.analysis.kind(node) is Kind.CONTRACTION
        return is_product and not any(self.meets_something(self.parts[node, p]) for p in parts)

    def meets_something(self, part: Node) -> bool:
        """Whether an elementwise operator reads a part of a product."""
        stack = [part]
        while stack:
            for user in stack.pop().users:
                if user.op != "call_function" or short_name(user) == "cat":
                    continue
                name = short_name(user)
                if name in RESHAPING or name in SAME_PLACE or _is_turning(name):
                    stack.append(user)
                elif name not in ("mm", "bmm", "addmm", "index_put"):
                    return True
        return False

    def dividers(self, node: Node, parts: Sequence[Bands]) -> Iterator[Node]:
        """The operators that are computed piece by piece and so need parts of a node."""
        stack: list[_Key | Node] = [(node, bands) for bands in parts]
        seen: set[_Key | Node] = set()
        while stack:
            key = stack.pop()
            if key in seen:
                continue
            seen.add(key)
            if isinstance(key, Node):
                if self.is_divided(key):
                    yield key
            else:
                stack.extend(self.askers.get(key, ()))


def _is_turning(name: str) -> bool:
    return name in ("permute", "transpose", "t", "unsqueeze", "squeeze", "expand")


def _dim(dim: Any, rank: int) -> int:
    assert isinstance(dim, int)
    return dim % rank


def _dim_of_split(split: Node) -> int:
    source = split.args[0]
    assert isinstance(source, Node)
    at = 1 if short_name(split) == "unbind" else 2
    given = split.args[at] if len(split.args) > at else split.kwargs.get("dim", 0)
    return _dim(given, tensors_of(source)[0].dim())


def _lost_dim(node: Node) -> int | None:
    """The dimension of its operand that a slice of one place does not have any more."""
    if short_name(node) == "select":
        return _dim(node.args[1], tensors_of(node)[0].dim() + 1)
    split = node.args[0]
    if node.target is operator.getitem and isinstance(split, Node):
        return _dim_of_split(split) if short_name(split) == "unbind" else None
    return None


def _is_simple(width: Place) -> bool:
    """Whether a length is no choice between two."""
    choices = {"Max", "Min", "Piecewise"}
    return not any(type(x).__name__ in choices for x in sympy.preorder_traversal(width))


def _overlap(band: Band, at: Place, end: Place) -> tuple[Place, Place]:
    """The places that a band and a piece have in common, or _InTheWay where sizes decide."""
    if band.period is not None:
        raise _InTheWay
    before, behind = band.start - at, band.stop - end
    if not (before.is_nonpositive or before.is_nonnegative):
        raise _InTheWay
    if not (behind.is_nonpositive or behind.is_nonnegative):
        raise _InTheWay
    start = at if before.is_nonpositive else band.start
    stop = end if behind.is_nonnegative else band.stop
    width = stop - start
    if width.is_nonpositive:
        return at, at
    if width.is_positive or width.is_nonnegative:
        return start, stop
    raise _InTheWay


def _frozen(given: Any) -> Any:
    """Arguments as a key."""
    if isinstance(given, list | tuple):
        return tuple(_frozen(x) for x in given)
    return type(given), given
