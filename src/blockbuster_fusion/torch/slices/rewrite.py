"""Builds the graph with slices moved up and concatenations down."""

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import (
    has_effect,
    operand,
    short_name,
    tensor_of,
    tensor_operands,
    tensors_of,
)
from blockbuster_fusion.torch.capture.operators import are_of_one_dtype, concatenated
from blockbuster_fusion.torch.slices.band import (
    Band,
    Bands,
    bands_through_view,
    by_dim,
    extents,
    lengths_after,
    symbolic,
)
from blockbuster_fusion.torch.slices.boundaries import NOT_ELEMENTWISE, Concatenations
from blockbuster_fusion.torch.slices.dims import (
    RESHAPING,
    CannotMove,
    NodeSlice,
    broadcast_bands,
    lost_dim,
    overlap,
    reduced_dims,
    slice_of,
    source_dim,
    squeezed_dims,
)
from blockbuster_fusion.torch.slices.draft import Draft, GraphDraft, NewNode
from blockbuster_fusion.torch.slices.survey import COMBINED

aten = torch.ops.aten


class SliceMotion:
    """A graph with its slices moved, for one choice of what is stored and undivided."""

    def __init__(self, concatenations: Concatenations, *, splits: bool) -> None:
        self.concatenations, self.analysis = concatenations, concatenations.analysis
        self.survey, self.splits = concatenations.survey, splits
        self.new = GraphDraft(self.survey)
        self.joins: set[NewNode] = set()
        """New concatenations whose pieces are stored in place."""
        self.slices: dict[NodeSlice, NewNode] = {}
        self.unmoved: set[NodeSlice] = set()
        """Slices that are views of nodes in memory."""
        self.requesters: dict[NodeSlice, dict[NodeSlice | Node, None]] = {}
        """The other slices, or old nodes, for which a slice was needed."""
        self.requests: list[NodeSlice | Node] = []
        self.asking: Node
        """The old node for which slices are being made."""
        self.has_moved = False
        for node in self.survey.nodes:
            self.new.pass_by(node, self.counterpart(node))

    def result(self) -> Analysis:
        """The analysis of the graph, which is changed."""
        made = self.new.write()
        joins = (made[x] if isinstance(x, Draft) else x for x in self.joins if self.is_alive(x))
        return self.analysis.after_changes(joins=frozenset(joins))

    def is_alive(self, x: NewNode) -> bool:
        """True if a node of the new graph is needed."""
        return x in self.new.readers

    # ---------------------------------------------------------------- whole nodes

    def counterpart(self, node: Node) -> NewNode:
        """The new node for an old one, or that itself."""
        if node not in self.survey.asking:
            return node
        self.new.reach(node)
        self.asking, self.requests = node, [node]
        try:
            slice_ = self.survey.slices.get(node)
            if slice_ is not None:
                found = self.sliced(*slice_)
                return node if slice_ in self.unmoved else self.squeezed(node, found)
            if node in self.concatenations.divided:
                return self.divided(node)
            if short_name(node) == "cat":
                return self.without_empty_pieces(node)
            combined = self.combined(node)
        except CannotMove:
            return node
        return node if combined is None else combined

    def without_empty_pieces(self, node: Node) -> NewNode:
        """An old concatenation, without its empty pieces."""
        pieces, dim = concatenated(node)
        if not are_of_one_dtype(pieces):
            return node
        if len(pieces) == 1:
            return self.new.counterpart(pieces[0])
        made: NewNode = node
        given: Any = node.args[0]
        if len(pieces) < len(given):
            given = [self.new.counterpart(p) for p in pieces]
            made = self.new.emit(aten.cat.default, (given, dim), node)
        is_computed = all(self.analysis.roots(p) for p in pieces)
        if is_computed and not self.concatenations.elementwise_readers(node):
            self.joins.add(made)  # stored in place, rather than chosen from
        return made

    def divided(self, node: Node) -> NewNode:
        """An old node as a concatenation of its pieces, each of which is computed alone."""
        boundaries = self.concatenations.boundaries(node)
        if boundaries is None:
            raise CannotMove
        pieces = [self.sliced(node, (band,)) for band in boundaries.bands()]
        if boundaries.period is None:
            made = self.new.emit(aten.cat.default, (pieces, boundaries.dim), node)
            self.joins.add(made)
            return made
        full = extents(tensor_of(node))
        outer = full[boundaries.dim] / boundaries.period
        split = [
            self.new.reshaped(
                p, [*full[: boundaries.dim], outer, b.width, *full[boundaries.dim + 1 :]], node
            )
            for p, b in zip(pieces, boundaries.bands(), strict=True)
        ]
        made = self.new.emit(aten.cat.default, (split, boundaries.dim + 1), node)
        self.joins.add(made)
        return self.new.reshaped(made, full, node)

    def combined(self, node: Node) -> NewNode | None:
        """A reduction along a concatenation, from the reductions of its pieces."""
        name = short_name(node)
        found = reduced_dims(node)
        if found is None or name not in COMBINED:
            return None
        source, dims = found
        boundaries = self.concatenations.boundaries(source)
        if boundaries is None or boundaries.dim not in dims:
            return None
        made: NewNode | None = None
        for band in boundaries.bands():
            piece = self.sliced(source, (band,))
            reduced = self.reduced(node, piece)
            made = reduced if made is None else self.new.emit(COMBINED[name], (made, reduced), node)
        self.has_moved = True
        return made

    def reduced(self, node: Node, piece: NewNode) -> NewNode:
        """A reduction of one piece; of a piece of length one it is the piece."""
        _, dims = reduced_dims(node) or (node, [])
        tensor, whole = self.new.tensor(piece), tensor_of(node)
        is_same = tensor.dim() == whole.dim() and tensor.dtype is whole.dtype
        if is_same and all(tensor.shape[d] == 1 for d in dims):
            return piece
        return self.new.emit(node.target, (piece, *node.args[1:]), node, node.kwargs)

    def share(self, softmax: Node, band: Band) -> NewNode:
        """A piece of a softmax along a concatenation: its share in the sum over all pieces."""
        source, (dim,) = reduced_dims(softmax) or (softmax, [-1])
        boundaries = self.concatenations.boundaries(source)
        if boundaries is None or boundaries.dim != dim or band not in boundaries.bands():
            raise CannotMove
        pieces = [self.sliced(source, (b,)) for b in boundaries.bands()]
        dtype = tensor_of(softmax).dtype
        if tensor_of(source).dtype is not dtype:
            wide = {"dtype": dtype}
            pieces = [self.new.emit(aten._to_copy.default, (p,), softmax, wide) for p in pieces]
        most = self.total(pieces, dim, aten.amax.default, aten.maximum.default, softmax)
        shifted = [self.new.emit(aten.sub.Tensor, (p, most), softmax) for p in pieces]
        powers = [self.new.emit(aten.exp.default, (p,), softmax) for p in shifted]
        total = self.total(powers, dim, aten.sum.dim_IntList, aten.add.Tensor, softmax)
        own = powers[boundaries.bands().index(band)]
        return self.new.emit(aten.div.Tensor, (own, total), softmax)

    def total(
        self, pieces: Sequence[NewNode], dim: int, reduce: Any, join: Any, like: Node
    ) -> NewNode:
        """The reduction of all pieces along the dimension of their concatenation."""
        reduced = (
            piece
            if self.new.tensor(piece).shape[dim] == 1
            else self.new.emit(reduce, (piece, [dim], True), like)
            for piece in pieces
        )
        return functools.reduce(lambda a, b: self.new.emit(join, (a, b), like), reduced)

    def squeezed(self, node: Node, found: NewNode) -> NewNode:
        """A slice without the dimension that a `select` or `unbind` removes."""
        dim = lost_dim(node)
        return found if dim is None else self.new.emit(aten.squeeze.dim, (found, dim), node)

    # ---------------------------------------------------------------- slices of nodes

    def sliced(self, node: Node, bands: Bands) -> NewNode:
        """A slice of an old node, in the new graph."""
        bands = self.narrowing(node, bands)
        if not bands:
            return self.new.counterpart(node)
        key = (node, bands)
        self.requesters.setdefault(key, {})[self.requests[-1]] = None
        if key not in self.slices:
            self.requests.append(key)
            try:
                self.slices[key] = self.moved(node, bands)
                self.has_moved = True
            except CannotMove:
                self.slices[key] = self.new.slice_in_memory(node, bands)
                self.unmoved.add(key)
            finally:
                self.requests.pop()
        return self.slices[key]

    def narrowing(self, node: Node, bands: Bands) -> Bands:
        """The bands that leave elements out."""
        lengths = extents(tensor_of(node))
        found = []
        for band in bands:
            if not band.is_whole(lengths[band.dim]):
                found.append(band)
                lengths[band.dim] = band.length(lengths[band.dim])
        return tuple(found)

    def moved(self, node: Node, bands: Bands) -> NewNode:
        """A slice of an operator's result, from slices of its operands; or CannotMove."""
        analysis = self.analysis
        if (
            node.op != "call_function"
            or node in self.concatenations.stored
            or not self.may_move(node)
        ):
            raise CannotMove
        if self.is_one_of_several(node):
            raise CannotMove
        slice_ = slice_of(node)
        if slice_ is not None:
            return self.moved_slice(node, slice_, bands)
        name, kind = short_name(node), analysis.kind(node)
        if name == "cat":
            return self.moved_cat(node, bands)
        if kind is Kind.VIEW:
            return self.moved_view(node, bands)
        if kind is Kind.POINTWISE and name not in NOT_ELEMENTWISE:
            return self.moved_pointwise(node, bands)
        if kind is Kind.REDUCTION:
            return self.moved_reduction(node, bands)
        if kind is Kind.CONTRACTION:
            return self.moved_product(node, bands)
        if name == "full":
            return self.moved_full(node, bands)
        raise CannotMove

    def may_move(self, node: Node) -> bool:
        """True if a node is in the layer that asks for it, or is light enough to be split."""
        if has_effect(node) or self.analysis.refusal(node):
            return False
        regions = self.analysis.regions
        return node not in self.survey.heavy or regions[node] == regions[self.asking]

    def is_one_of_several(self, node: Node) -> bool:
        """True if a node has several results, or is one of several."""
        return len(tensors_of(node)) != 1 or (
            node.target is operator.getitem and self.analysis.is_element(node)
        )

    def moved_slice(self, node: Node, slice_: NodeSlice, bands: Bands) -> NewNode:
        """A slice of a slice, as one slice of its operand."""
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
        return self.squeezed(node, self.sliced(source, by_dim(made)))

    def moved_cat(self, node: Node, bands: Bands) -> NewNode:
        """A concatenation of slices of the pieces; one that is left needs none."""
        pieces, dim = concatenated(node)
        along, *more = [*(b for b in bands if b.dim == dim), None]
        others = tuple(b for b in bands if b.dim != dim)
        if len(more) > 1 or not are_of_one_dtype(pieces):
            raise CannotMove
        found: list[NewNode] = []
        at = symbolic(0)
        for piece in pieces:
            end = at + extents(tensor_of(piece))[dim]
            if along is None:
                found.append(self.sliced(piece, others))
            else:
                start, stop = overlap(along, at, end)
                if start != stop:
                    band = Band(dim, start - at, stop - at)
                    found.append(self.sliced(piece, by_dim([band, *others])))
            at = end
        if len(found) == 1:
            return found[0]
        return self.new.emit(aten.cat.default, (found, dim), node)

    def moved_view(self, node: Node, bands: Bands) -> NewNode:
        """A view of a slice of the viewed array."""
        source = tensor_operands(node)[0]
        before, after = extents(tensor_of(source)), extents(tensor_of(node))
        name, lengths = short_name(node), lengths_after(after, bands)
        if name in RESHAPING:
            found = bands_through_view(bands, after, before)
            if found is None:
                raise CannotMove
        else:
            dims = [(source_dim(node, b.dim), b) for b in bands]
            found = by_dim(replace(b, dim=dim) for dim, b in dims if dim is not None)
        made = self.sliced(source, found)
        if name in RESHAPING:
            return self.new.reshaped(made, lengths, node)
        if name == "expand":
            sizes = [self.new.size(s) for s in lengths]
            return self.new.emit(aten.expand.default, (made, sizes), node)
        if name == "squeeze":  # a slice may have dimensions of length 1 that the whole has not
            gone = squeezed_dims(node)
            return self.new.emit(aten.squeeze.dims, (made, gone), node) if gone else made
        return self.new.emit(node.target, (made, *node.args[1:]), node, node.kwargs)

    def moved_pointwise(self, node: Node, bands: Bands) -> NewNode:
        """An elementwise operator on slices of its operands."""

        def moved(given: Any) -> Any:
            if not isinstance(given, Node):
                return given
            if not tensors_of(given):
                return self.new.counterpart(given)
            return self.sliced(given, broadcast_bands(bands, tensor_of(node), tensor_of(given)))

        arguments = tuple(moved(a) for a in node.args)
        options = {k: moved(v) for k, v in node.kwargs.items()}
        return self.new.emit(node.target, arguments, node, options)

    def moved_reduction(self, node: Node, bands: Bands) -> NewNode:
        """A reduction of a slice; along the sliced dimension only a softmax can move."""
        found = reduced_dims(node)
        if found is None:
            raise CannotMove
        source, dims = found
        rank = tensor_of(source).dim()
        keeps = tensor_of(node).dim() == rank
        left = [d for d in range(rank) if keeps or d not in dims]
        moved = [replace(band, dim=left[band.dim]) for band in bands]
        if any(b.dim in dims for b in moved):
            if len(bands) > 1 or short_name(node) != "_softmax":
                raise CannotMove
            return self.share(node, bands[0])
        made = self.sliced(source, tuple(moved))
        return self.new.emit(node.target, (made, *node.args[1:]), node, node.kwargs)

    def moved_product(self, node: Node, bands: Bands) -> NewNode:
        """A product with a slice of the weight, of the rows, or of both."""
        name = short_name(node)
        is_plain = name in ("mm", "addmm", "bmm") and not node.kwargs
        if not is_plain or not self.splits or not self.analysis.has_weight(node):
            raise CannotMove
        *bias, x, y = (operand(node, at) for at in range(len(node.args)))
        last = 1 if name != "bmm" else 2
        of_x = tuple(b for b in bands if b.dim != last)
        of_y = [replace(b, dim=last) for b in bands if b.dim == last]
        of_y += [b for b in bands if name == "bmm" and b.dim == 0]
        arguments = [self.sliced(x, of_x), self.sliced(y, by_dim(of_y))]
        shifts = [
            self.sliced(b, broadcast_bands(bands, tensor_of(node), tensor_of(b))) for b in bias
        ]
        return self.new.emit(node.target, (*shifts, *arguments), node)

    def moved_full(self, node: Node, bands: Bands) -> NewNode:
        """A smaller constant."""
        sizes = [self.new.size(s) for s in lengths_after(extents(tensor_of(node)), bands)]
        return self.new.emit(node.target, (sizes, *node.args[1:]), node, node.kwargs)
