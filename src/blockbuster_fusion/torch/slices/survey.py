"""The nodes of a graph that slices and concatenations may change, found once for all drafts."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch.fx import Node

from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import short_name, tensors_of
from blockbuster_fusion.torch.slices.band import SymbolicInt
from blockbuster_fusion.torch.slices.dims import NodeSlice, reduced_dims, slice_of

aten = torch.ops.aten

COMBINED = {"sum": aten.add.Tensor, "amax": aten.maximum.default, "amin": aten.minimum.default}
"""The operator that combines the reductions of two pieces into that of both."""


@dataclass(frozen=True)
class Survey:
    """The facts about a graph that hold whatever is stored and undivided."""

    analysis: Analysis

    @cached_property
    def nodes(self) -> list[Node]:
        """All nodes, in order."""
        return [*self.analysis.module.graph.nodes]

    @cached_property
    def number(self) -> dict[Node, int]:
        """The position of each node."""
        return {node: i for i, node in enumerate(self.nodes)}

    @cached_property
    def sizes(self) -> dict[Node, SymbolicInt]:
        """The nodes that are symbolic sizes."""
        values = ((n, n.meta.get("val")) for n in self.nodes)
        return {n: value.node.expr for n, value in values if isinstance(value, torch.SymInt)}

    @cached_property
    def needed(self) -> list[Node]:
        """The nodes that stay though nothing reads them: inputs, results, and effects."""
        known: dict[object, bool] = {}

        def is_impure(node: Node) -> bool:
            if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
                return node.is_impure()
            if node.target not in known:
                known[node.target] = node.is_impure()
            return known[node.target]

        return [n for n in self.nodes if is_impure(n)]

    @cached_property
    def heavy(self) -> set[Node]:
        """The nodes that depend on products, or on what PyTorch computes."""
        found: set[Node] = set()
        for node in self.analysis.nodes:
            is_heavy = self.analysis.kind(node) in (Kind.CONTRACTION, Kind.MISC)
            if is_heavy or not found.isdisjoint(node.all_input_nodes):
                found.add(node)
        return found

    @cached_property
    def slices(self) -> dict[Node, NodeSlice]:
        """The slices that kernels could take, unless their memory is given other strides."""
        usable = (n for n in self.analysis.nodes if tensors_of(n) and not self.analysis.refusal(n))
        found = ((n, slice_of(n)) for n in usable)
        return {n: x for n, x in found if x is not None and not self.is_strided_anew(n)}

    @cached_property
    def joined(self) -> dict[Node, None]:
        """The concatenations, and what views and elementwise operators make of them, in order."""
        found: dict[Node, None] = {}
        for node in self.analysis.nodes:
            is_joined = short_name(node) == "cat"
            if not is_joined and not found.keys().isdisjoint(node.all_input_nodes):
                is_joined = self.analysis.kind(node) in (Kind.VIEW, Kind.POINTWISE)
            if is_joined:
                found[node] = None
        return found

    @cached_property
    def asking(self) -> set[Node]:
        """The nodes that may ask for slices: these, concatenations, and sums along them."""
        joined = {n for n in self.joined if tensors_of(n) and not self.analysis.refusal(n)}
        readers = {user for n in self.joined for user in n.users if short_name(user) in COMBINED}
        sums = {n for n in readers if reduced_dims(n) and not self.analysis.refusal(n)}
        return {*self.slices} | joined | sums

    def is_strided_anew(self, node: Node) -> bool:
        """True if `as_strided` reads the memory of a node or of a view of it."""
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
