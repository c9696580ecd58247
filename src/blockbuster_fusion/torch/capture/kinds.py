"""The kinds of the nodes of a captured graph, and why kernels cannot compute some of them."""

import operator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch.fx import GraphModule, Node

from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.nodes import (
    GIVEN,
    is_empty_tensor,
    operand,
    short_name,
    tensor_of,
    tensors_of,
)
from blockbuster_fusion.torch.capture.operators import (
    concatenated,
    has_counted_indices,
    is_patchwise,
    lookup_axis,
    refusal,
)
from blockbuster_fusion.torch.capture.symbolic import as_size
from blockbuster_fusion.torch.capture.updates import Scatter, scatter_of, updates_in_place
from blockbuster_fusion.torch.table import row_for
from blockbuster_fusion.torch.table.row import Row

LOOKUPS = ("embedding", "index_select", "gather", "constant_pad_nd", "nll_loss_forward")

PERMUTING = ("permute", "transpose", "t")
MERGING = ("view", "_unsafe_view", "reshape", "clone", "unsqueeze", "squeeze", "alias")

KINDS_BY_OTHERS = ("clone", "cat", "index")
"""Operators whose kinds depend on the nodes around them."""

MOST_CHOSEN = 16
"""The number of pieces from which a kernel chooses by position; more are stored in place."""


@dataclass(frozen=True)
class Kinds:
    """The kinds of the nodes of a graph."""

    module: GraphModule
    static: frozenset[Node]
    """The inputs that are weights."""
    joins: frozenset[Node] = frozenset()
    """Concatenations that are to be stored in place, whatever their pieces are."""
    library: frozenset[Node] = frozenset()
    """Operators that PyTorch runs, because that is faster than a kernel."""
    _kinds: dict[Node, Kind] = field(default_factory=dict, init=False, repr=False, compare=False)
    _refusals: dict[Node, str | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _passing: set[Node] = field(default_factory=set, init=False, repr=False, compare=False)
    """The nodes whose kinds and refusals depend on the nodes around them."""

    def after_changes(
        self,
        static: frozenset[Node] | None = None,
        library: frozenset[Node] | None = None,
        joins: frozenset[Node] | None = None,
    ) -> Self:
        """The same of the graph as it is now, with other weights, operators or joins.

        New nodes may stand for old ones, whose form they have. So facts that follow from the form
        of a node stay. Some kinds depend on readers as well, and so do refusals of nodes with
        several results.
        """
        made = replace(
            self,
            static=self.static if static is None else static,
            library=self.library if library is None else library,
            joins=self.joins if joins is None else joins,
        )
        made._refusals.update(self._refusals)
        made._kinds.update(self._kinds)
        for node in self._passing:
            made._refusals.pop(node, None)
            made._kinds.pop(node, None)
        for node in (*(made.library ^ self.library), *self.updates, *made.updates):
            made._kinds.pop(node, None)
        return made

    @cached_property
    def nodes(self) -> list[Node]:
        """The calls of the graph, in order."""
        return [n for n in self.module.graph.nodes if n.op == "call_function"]

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """The nodes of the graph."""
        return {n.name: n for n in self.module.graph.nodes}

    @cached_property
    def inputs(self) -> list[Node]:
        return [n for n in self.module.graph.nodes if n.op == "placeholder"]

    @cached_property
    def results(self) -> list[Any]:
        """The results of the graph: nodes, numbers and None."""
        given: Any = self.module.graph.output_node().args[0]
        return [*given]

    @cached_property
    def outputs(self) -> set[Node]:
        """The results of the graph that are nodes."""
        return {n for n in self.results if isinstance(n, Node)}

    @cached_property
    def updates(self) -> dict[Node, Node]:
        """The updates of inputs that are done in place, with their copies back to the inputs."""
        return updates_in_place(self.nodes)

    @cached_property
    def scatters(self) -> dict[Node, Scatter]:
        """The updates that kernels can do: rows that are stored at places that are data."""
        found = {node: scatter_of(node) for node in self.updates}
        return {node: scatter for node, scatter in found.items() if scatter is not None}

    def is_scattered(self, node: Node) -> bool:
        """True if a kernel stores an operand of a node into an input, at places that are data."""
        is_call = node.op == "call_function"
        return is_call and node in self.scatters and node not in self.library

    # ---------------------------------------------------------------- kinds

    def kind(self, node: Node) -> Kind:
        """The kind of an operator."""
        found = self._kinds.get(node)
        if found is None:
            found = self._kinds[node] = self._kind(node)
            if not _has_lasting_kind(node):
                self._passing.add(node)
        return found

    def refusal(self, node: Node) -> str | None:
        """The reason why kernels cannot compute a node whose operator is known, or None."""
        if node not in self._refusals:
            self._refusals[node] = refusal(node)
            if not _has_one_result(node):
                self._passing.add(node)
        return self._refusals[node]

    def usable_row(self, node: Node) -> Row | None:
        """The row of the operator table for a node, unless kernels cannot compute the node."""
        row = row_for(node.target)
        return None if row is None or self.refusal(node) is not None else row

    def _kind(self, node: Node) -> Kind:
        if not tensors_of(node):
            return Kind.VIEW  # arithmetic on sizes
        if node in self.library:
            return Kind.MISC
        if self.is_scattered(node):
            return Kind.POINTWISE
        if node.target is operator.getitem:
            return Kind.MISC if self.kind(operand(node)) is Kind.MISC else Kind.VIEW
        row = self.usable_row(node)
        if row is None:
            known = row_for(node.target)
            is_view = known is not None and known.kind is Kind.VIEW
            return (
                Kind.VIEW if is_view and all(map(is_empty_tensor, tensors_of(node))) else Kind.MISC
            )
        if short_name(node) == "index" and not has_counted_indices(node):
            return Kind.MISC if lookup_axis(node) is None else Kind.POINTWISE
        if short_name(node) == "convolution" and not is_patchwise(node):
            return Kind.MISC
        if self.is_reordering(node):
            return Kind.POINTWISE
        return Kind.MISC if self.is_join(node) else row.kind

    def is_reordering(self, node: Node) -> bool:
        """True for a result that is a given array in another order: PyTorch copies it slowly."""
        if short_name(node) != "clone" or not _is_result(node):
            return False
        source, is_permuted = operand(node), False
        while source.op == "call_function" and short_name(source) in (*MERGING[:3], *PERMUTING):
            is_permuted |= short_name(source) in PERMUTING
            source = operand(source)
        in_order = node.kwargs.get("memory_format") is torch.contiguous_format
        return is_permuted and in_order and source.op in GIVEN

    def is_join(self, node: Node) -> bool:
        """True if the pieces of a concatenation are stored in place, one behind the other.

        A few pieces of one length are not: a kernel chooses from them by position.
        """
        if short_name(node) != "cat" or self.refusal(node) is not None:
            return False
        if node in self.joins:
            return True
        pieces, dim = concatenated(node)
        lengths = {as_size(tensor_of(p).shape[dim]) for p in pieces}
        return len(lengths) > 1 or len(pieces) > MOST_CHOSEN

    def reads_in_memory(self, node: Node) -> list[Node]:
        """The operands of a node that have to lie in memory: tables, and places of rows."""
        table = self.table(node)
        if self.is_scattered(node):
            return [operand(node), self.scatters[node].index]
        return [] if table is None else [table]

    def table(self, node: Node) -> Node | None:
        """The array in which a node looks elements up, if it does."""
        name = short_name(node)
        is_lookup = name in LOOKUPS or (name == "index" and self.kind(node) is Kind.POINTWISE)
        return operand(node) if is_lookup else None


def _has_one_result(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _has_lasting_kind(node: Node) -> bool:
    """True if the kind of a node follows from its own form, unless PyTorch runs it."""
    is_call = node.op == "call_function" and node.target is not operator.getitem
    return is_call and _has_one_result(node) and short_name(node) not in KINDS_BY_OTHERS


def _is_result(node: Node) -> bool:
    """True if nothing reads a node but the results of the graph, as it is or in another shape."""
    stack = [*node.users]
    while stack:
        user = stack.pop()
        if user.op != "output" and short_name(user) not in MERGING[:3]:
            return False
        stack += user.users
    return True
