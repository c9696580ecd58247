"""Slices move up, and concatenations down: each old node, and parts of it, in a new graph."""

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from blockbuster_fusion.select.parts import Kind
from blockbuster_fusion.torch.capture.graph import has_effect, short_name, tensors_of
from blockbuster_fusion.torch.slices.band import (
    Band,
    Bands,
    Place,
    bands_of,
    bands_through_view,
    extents,
    lengths_of,
    place,
)
from blockbuster_fusion.torch.slices.boundaries import LOOKUPS, Pieces, is_of_one_dtype
from blockbuster_fusion.torch.slices.build import Builder
from blockbuster_fusion.torch.slices.dims import (
    RESHAPING,
    InTheWay,
    lost_dim,
    reduced_dims,
    slice_of,
    source_dim,
    squeezed_dims,
)

aten = torch.ops.aten

COMBINED = {"sum": aten.add.Tensor, "amax": aten.maximum.default, "amin": aten.minimum.default}
"""How the reductions of two pieces become that of both."""

Part = tuple[Node, Bands]
"""Some bands of an old node."""


class Moved(Builder):
    """One way to move the pieces of a graph."""

    def __init__(self, pieces: Pieces, *, splits: bool) -> None:
        super().__init__()
        self.pieces, self.analysis, self.splits = pieces, pieces.analysis, splits
        self.regions = self.analysis.regions()
        self.parts: dict[Part, Node] = {}
        self.unmoved: set[Part] = set()
        """Parts of what lies in memory."""
        self.askers: dict[Part, dict[Part | Node, None]] = {}
        """For which other parts, or old nodes, a part was needed."""
        self.asking: list[Part | Node] = []
        self.has_moved = False
        self.is_heavy: dict[Node, bool] = {}
        """Whether a node depends on products, or on what PyTorch computes."""
        for node in self.analysis.module.graph.nodes:
            self.is_heavy[node] = node.op == "call_function" and (
                self.analysis.kind(node) in (Kind.CONTRACTION, Kind.MISC)
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
            slice_ = slice_of(node)
            if slice_ is not None and not self.pieces.is_strided_anew(node):
                found = self.part(*slice_)
                return self.copy(node) if slice_ in self.unmoved else self.squeezed(node, found)
            if node in self.pieces.divided:
                return self.joined(node)
            if short_name(node) == "cat":
                return self.concatenated(node)
            combined = self.combined(node)
        except InTheWay:
            return self.copy(node)
        return self.copy(node) if combined is None else combined

    def concatenated(self, node: Node) -> Node:
        """An old concatenation, without pieces that are empty."""
        pieces, dim = self.analysis.joined(node)
        if not is_of_one_dtype(pieces):
            return self.copy(node)
        if len(pieces) == 1:
            return self.wholes[pieces[0]]
        made = self.emit(aten.cat.default, ([self.wholes[p] for p in pieces], dim), node)
        is_computed = all(self.analysis.roots(p) for p in pieces)
        if is_computed and not self.pieces.elementwise_readers(node):
            made.meta["is_join"] = True  # stored in their places, rather than chosen from
        return made

    def joined(self, node: Node) -> Node:
        cuts = self.pieces.cuts(node)
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
        found = reduced_dims(node)
        if found is None or name not in COMBINED:
            return None
        source, dims = found
        cuts = self.pieces.cuts(source)
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
        _, dims = reduced_dims(node) or (node, [])
        (tensor,), (whole,) = tensors_of(piece), tensors_of(node)
        is_same = tensor.dim() == whole.dim() and tensor.dtype is whole.dtype
        if is_same and all(tensor.shape[d] == 1 for d in dims):
            return piece
        return self.emit(node.target, (piece, *node.args[1:]), node, node.kwargs)

    def share(self, softmax: Node, band: Band) -> Node:
        """A piece of the softmax along a concatenation: its share in the sum of all pieces."""
        source, (dim,) = reduced_dims(softmax) or (softmax, [-1])
        cuts = self.pieces.cuts(source)
        if cuts is None or cuts.dim != dim or band not in cuts.bands():
            raise InTheWay
        pieces = [self.part(source, (b,)) for b in cuts.bands()]
        dtype = tensors_of(softmax)[0].dtype
        if tensors_of(source)[0].dtype is not dtype:
            wide = {"dtype": dtype}
            pieces = [self.emit(aten._to_copy.default, (p,), softmax, wide) for p in pieces]
        most = self.total(pieces, dim, aten.amax.default, aten.maximum.default, softmax)
        shifted = [self.emit(aten.sub.Tensor, (p, most), softmax) for p in pieces]
        powers = [self.emit(aten.exp.default, (p,), softmax) for p in shifted]
        total = self.total(powers, dim, aten.sum.dim_IntList, aten.add.Tensor, softmax)
        own = powers[cuts.bands().index(band)]
        return self.emit(aten.div.Tensor, (own, total), softmax)

    def total(self, pieces: Sequence[Node], dim: int, reduce: Any, join: Any, like: Node) -> Node:
        """All pieces reduced along the dimension that they are pieces of."""
        made: Node | None = None
        for piece in pieces:
            is_one = tensors_of(piece)[0].shape[dim] == 1
            reduced = piece if is_one else self.emit(reduce, (piece, [dim], True), like)
            made = reduced if made is None else self.emit(join, (made, reduced), like)
        assert made is not None
        return made

    def squeezed(self, node: Node, found: Node) -> Node:
        """What a `select` shows has lost a dimension."""
        dim = lost_dim(node)
        return found if dim is None else self.emit(aten.squeeze.dim, (found, dim), node)

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
            except InTheWay:
                self.parts[key] = self.in_memory(node, bands)
                self.unmoved.add(key)
            finally:
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
        if node.op != "call_function" or node in self.pieces.stored or not self.may_move(node):
            raise InTheWay
        if self.is_one_of_several(node):
            raise InTheWay
        slice_ = slice_of(node)
        if slice_ is not None:
            return self.moved_slice(node, slice_, bands)
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
        raise InTheWay

    def may_move(self, node: Node) -> bool:
        """Whether a node is in the layer that asks, or is light enough to be split anywhere."""
        if has_effect(node) or self.analysis.refusal(node):
            return False
        asker = self.asking[0]
        assert isinstance(asker, Node)
        return not self.is_heavy[node] or self.regions[node] == self.regions[asker]

    def is_one_of_several(self, node: Node) -> bool:
        return len(tensors_of(node)) != 1 or (
            node.target is operator.getitem and self.analysis.is_element(node)
        )

    def moved_slice(self, node: Node, slice_: Part, bands: Bands) -> Node:
        """A part of a slice as a part of what it is a slice of."""
        source, (inner,) = slice_
        has_lost = lost_dim(node) is not None
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
        if len(more) > 1 or not is_of_one_dtype(pieces):
            raise InTheWay
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
                raise InTheWay
        else:
            dims = [(source_dim(node, b.dim), b) for b in bands]
            found = bands_of(replace(b, dim=dim) for dim, b in dims if dim is not None)
        made = self.part(source, found)
        if name in RESHAPING:
            return self.reshaped(made, lengths, node)
        if name == "expand":
            sizes = [self.number(s) for s in lengths]
            return self.emit(aten.expand.default, (made, sizes), node)
        if name == "squeeze":  # a part may have dimensions of length 1 that the whole has not
            gone = squeezed_dims(node)
            return self.emit(aten.squeeze.dims, (made, gone), node) if gone else made
        return self.emit(node.target, (made, *node.args[1:]), node, node.kwargs)

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
                        raise InTheWay
                    found.append(replace(band, dim=at))
            return self.part(given, tuple(found))

        arguments = tuple(moved(a) for a in node.args)
        options = {k: moved(v) for k, v in node.kwargs.items()}
        return self.emit(node.target, arguments, node, options)

    def moved_reduction(self, node: Node, bands: Bands) -> Node:
        found = reduced_dims(node)
        if found is None:
            raise InTheWay
        source, dims = found
        rank = tensors_of(source)[0].dim()
        keeps = tensors_of(node)[0].dim() == rank
        left = [d for d in range(rank) if keeps or d not in dims]
        moved = [replace(band, dim=left[band.dim]) for band in bands]
        if any(b.dim in dims for b in moved):
            if len(bands) > 1 or short_name(node) != "_softmax":
                raise InTheWay
            return self.share(node, bands[0])
        made = self.part(source, tuple(moved))
        return self.emit(node.target, (made, *node.args[1:]), node, node.kwargs)

    def moved_product(self, node: Node, bands: Bands) -> Node:
        name = short_name(node)
        is_plain = name in ("mm", "addmm", "bmm") and not node.kwargs
        if not is_plain or not self.splits or not self.analysis.has_weight(node):
            raise InTheWay
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


def _overlap(band: Band, at: Place, end: Place) -> tuple[Place, Place]:
    """The places that a band and a piece have in common, or InTheWay where sizes decide."""
    if band.period is not None:
        raise InTheWay
    before, behind = band.start - at, band.stop - end
    if not (before.is_nonpositive or before.is_nonnegative):
        raise InTheWay
    if not (behind.is_nonpositive or behind.is_nonnegative):
        raise InTheWay
    start = at if before.is_nonpositive else band.start
    stop = end if behind.is_nonnegative else band.stop
    width = stop - start
    if width.is_nonpositive:
        return at, at
    if width.is_positive or width.is_nonnegative:
        return start, stop
    raise InTheWay
