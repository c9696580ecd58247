"""The analysis of a captured graph: the kind of each node, its views, and what has to be stored."""

import operator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule, Node

from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.nodes import (
    CASTS,
    GIVEN,
    has_effect,
    is_empty_tensor,
    name_of,
    operand,
    short_name,
    tensor_of,
    tensor_operands,
    tensors_of,
)
from blockbuster_fusion.torch.capture.operators import (
    concatenated,
    has_counted_indices,
    is_patchwise,
    is_whole_slice,
    lookup_axis,
    refusal,
)
from blockbuster_fusion.torch.capture.regions import regions_of
from blockbuster_fusion.torch.capture.symbolic import as_size
from blockbuster_fusion.torch.capture.updates import Scatter, scatter_of, updates_in_place
from blockbuster_fusion.torch.table import row_for
from blockbuster_fusion.torch.table.row import Row

INDEXED = frozenset(
    {"slice", "select", "split", "split_with_sizes", "unbind", "narrow", "as_strided"}
)
"""Views of a part of an array. They are free if the array lies in memory."""

DISCONTINUOUS = frozenset(
    {
        *("floor", "ceil", "round", "trunc", "sign", "floor_divide", "argmax", "argmin"),
        *("eq", "ne", "lt", "le", "gt", "ge", "topk", "sort"),
    }
)
"""Operators whose result jumps, so that a float that is not rounded may give another one."""

LOOKUPS = ("embedding", "index_select", "gather", "constant_pad_nd", "nll_loss_forward")

PERMUTING = ("permute", "transpose", "t")
MERGING = ("view", "_unsafe_view", "reshape", "clone", "unsqueeze", "squeeze", "alias")

KINDS_BY_OTHERS = ("clone", "cat", "index")
"""Operators whose kinds depend on the nodes around them."""

MOST_CHOSEN = 16
"""The number of pieces from which a kernel chooses by position; more are stored in place."""


@dataclass(frozen=True)
class Analysis:
    """The facts about the nodes of a graph that decide how it is compiled."""

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
    ) -> "Analysis":
        """The analysis of the graph as it is now, with other weights, operators or joins.

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
    def regions(self) -> dict[Node, str]:
        """The layer of the model that each node belongs to."""
        return regions_of(self.module.graph)

    @cached_property
    def operators(self) -> list[Node]:
        """The nodes that a selection puts into parts."""
        return [
            n
            for n in self.nodes
            if (self.kind(n) is not Kind.VIEW and n not in self.recomputed and tensors_of(n))
            or has_effect(n)
        ]

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

    # ---------------------------------------------------------------- views

    def is_element(self, node: Node) -> bool:
        """True if a node is one of several results that an operator computes."""
        is_item = node.target is operator.getitem
        return is_item and self.kind(operand(node)) is not Kind.VIEW

    def owner(self, node: Node) -> Node:
        """The operator that computes a node: of one of several results, the one behind it."""
        return operand(node) if self.is_element(node) else node

    def is_indexed(self, node: Node) -> bool:
        """True if a view shows only a part of its operand."""
        if node.target is operator.getitem:
            return not self.is_element(node) and self.is_indexed(operand(node))
        return short_name(node) in INDEXED and not is_whole_slice(node)

    def base(self, node: Node) -> Node:
        """The node that a chain of views begins with."""
        while node.op == "call_function" and self.kind(node) is Kind.VIEW:
            sources = tensor_operands(node)
            if self.is_element(node) or not sources:
                return node
            node = sources[0]
        return node

    def is_whole(self, node: Node) -> bool:
        """True if a view shows each element of its base once."""
        base = self.base(node)
        while node is not base:
            if self.is_indexed(node) or short_name(node) in ("expand", "repeat"):
                return False
            node = tensor_operands(node)[0]
        return True

    def is_returned_view(self, node: Node) -> bool:
        """True if a node is a view, and it or a view of it is a result of the graph."""
        stack, seen = [node], set[Node]()
        while stack:
            n = stack.pop()
            if n in seen or n.op != "call_function" or self.kind(n) is not Kind.VIEW:
                continue
            if n in self.outputs:
                return True
            seen.add(n)
            stack.extend(n.users)
        return False

    def has_returned_view(self, node: Node) -> bool:
        """True if a view of a node is a result of the graph."""
        return any(self.is_returned_view(user) for user in node.users)

    # ---------------------------------------------------------------- recomputed nodes

    @cached_property
    def recomputed(self) -> set[Node]:
        """The cheap nodes that depend on inputs alone: each part that needs one computes it."""
        found: set[Node] = set()
        for node in self.nodes:
            kind = self.kind(node)
            if kind is Kind.MISC or not tensors_of(node):
                continue
            row = self.usable_row(node)
            if row is None and node.target is not operator.getitem:
                continue
            if row is not None and (kind is not row.kind or not row.cheap):
                continue  # expensive, or a lookup, where the same operator is a view otherwise
            # a generator takes from a tensor that it is like the shape alone
            sources = [] if kind is Kind.GENERATOR else tensor_operands(node)
            if not all(n in found or self.is_in_memory(n) for n in sources):
                continue
            if kind in (Kind.VIEW, Kind.GENERATOR) or not self.is_read_outside(node):
                found.add(node)
        return found

    def is_in_memory(self, node: Node) -> bool:
        """True if a node lies in memory, whatever is fused.

        This holds for inputs, and for integers and booleans that PyTorch computes: masks.
        """
        if node.op in GIVEN:
            return True
        dtypes = {t.dtype for t in tensors_of(node)}
        return self.kind(node) is Kind.MISC and dtypes <= {torch.int64, torch.int32, torch.bool}

    def is_read_outside(self, node: Node) -> bool:
        """True if a node, or a view of it, is a result, a table, or read by PyTorch's operators."""
        stack, seen = [node], set[Node]()
        while stack:
            n = stack.pop()
            for user in n.users:
                if user.op == "output" or self.kind(user) is Kind.MISC:
                    return True
                if n in self.reads_in_memory(user):
                    return True
                if user not in seen and self.kind(user) is Kind.VIEW:
                    seen.add(user)
                    stack.append(user)
        return False

    def roots(self, node: Node) -> list[Node]:
        """The operators that a node depends on, seen through views and recomputed nodes."""
        found: dict[Node, None] = {}
        stack, seen = [node], set[Node]()
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            if n in self.recomputed or (n.op == "call_function" and self.kind(n) is Kind.VIEW):
                if self.is_element(n):
                    found[self.owner(n)] = None
                else:
                    stack.extend(tensor_operands(n))
            elif n.op == "call_function":
                found[n] = None
        return [*found]

    def has_weight(self, node: Node) -> bool:
        """True if one operand of a contraction depends on weights alone."""
        is_product = self.kind(node) is Kind.CONTRACTION
        return is_product and any(self.is_static(n) for n in node.all_input_nodes[-2:])

    def is_static(self, node: Node) -> bool:
        """True if a node depends on weights alone."""
        stack = [node]
        while stack:
            n = stack.pop()
            if n.op in GIVEN:
                if n.op == "placeholder" and n not in self.static and tensors_of(n):
                    return False
            elif n not in self.recomputed:
                return False
            else:
                stack.extend(tensor_operands(n))
        return True

    # ---------------------------------------------------------------- results of parts

    def stored_results(self, node: Node, inside: set[Node]) -> list[Node]:
        """The node, or the views of it, that a part with the nodes `inside` stores for others."""
        if self.is_scattered(node):
            return [node]
        found: dict[Node, None] = {}
        several = isinstance(node.meta.get("val"), tuple | list)
        stack, seen = [*node.users] if several else [node], set[Node]()
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            for user in n.users:
                if user in inside:
                    continue
                if user.op == "call_function" and self.is_join(user) and self.is_whole(n):
                    found[n] = None  # it is stored right where it is joined
                elif user.op == "output" or self.kind(user) is not Kind.VIEW:
                    found[self.stored_view(n)] = None
                elif user.op == "call_function":
                    stack.append(user)
        return [*found]

    def stored_view(self, node: Node) -> Node:
        """The view between a node and its base that is stored, or the base itself.

        A permuted array that is then merged has to be stored in the new order. PyTorch copies it
        there (`clone`); a part stores it in that order in the first place.
        """
        path, base = [node], self.base(node)
        if self.is_scattered(base):
            return base
        while path[-1] is not base:
            path.append(tensor_operands(path[-1])[0])
        found, is_permuted, is_copied = base, False, False
        for step in reversed(path[:-1]):
            name = short_name(step)
            if name == "expand" or self.is_indexed(step) or step.target is operator.getitem:
                break
            if is_copied and name not in MERGING:
                break
            is_permuted = is_permuted or name in PERMUTING
            is_copied = is_copied or (is_permuted and name == "clone")
            if is_copied:
                found = step
        return found

    def is_rounding_observed(self, node: Node) -> bool:
        """True if an operator with a discontinuous result reads a node, or a view or cast of it."""
        stack, seen = [node], set[Node]()
        while stack:
            for user in stack.pop().users:
                is_cast = name_of(user) in CASTS
                to_integer = is_cast and not tensor_of(user).is_floating_point()
                if short_name(user) in DISCONTINUOUS or to_integer:
                    return True
                is_same = is_cast or self.kind(user) is Kind.VIEW
                if user.op == "call_function" and is_same and user not in seen:
                    seen.add(user)
                    stack.append(user)
        return False


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
