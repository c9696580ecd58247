"""The analysis of a captured graph: the kind of each node, its views, and what has to be stored."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch.fx import Node

from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.collectives import is_collective
from blockbuster_fusion.torch.capture.kinds import MERGING, PERMUTING, Kinds
from blockbuster_fusion.torch.capture.nodes import (
    CASTS,
    GIVEN,
    has_effect,
    name_of,
    operand,
    short_name,
    tensor_of,
    tensor_operands,
    tensors_of,
)
from blockbuster_fusion.torch.capture.operators import is_whole_slice
from blockbuster_fusion.torch.capture.regions import regions_of

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


@dataclass(frozen=True)
class Analysis(Kinds):
    """The facts about the nodes of a graph that decide how it is compiled."""

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

    @cached_property
    def needs(self) -> dict[Node, list[Node]]:
        """For each operator, those that have to run before it."""
        before = _in_given_order(self.operators)
        return {
            node: [r for n in tensor_operands(node) for r in self.roots(n)] + before.get(node, [])
            for node in self.operators
        }

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


def _in_given_order(operators: Sequence[Node]) -> dict[Node, list[Node]]:
    """For each collective, the one before it; and so for what is written after a collective.

    All ranks have to call collectives in one order, whatever each has chosen for the rest. What is
    in flight must not be overwritten before the wait for it. Random operators take their numbers
    from one generator, so that they keep their order, too.
    """
    found: dict[Node, list[Node]] = {}
    last: Node | None = None
    drawn: Node | None = None
    for node in operators:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            if drawn is not None:
                found[node] = [drawn]
            drawn = node
        follows = is_collective(node.target) or has_effect(node)
        if follows and last is not None:
            found.setdefault(node, []).append(last)
        if is_collective(node.target) or (follows and last is not None):
            last = node
    return found
