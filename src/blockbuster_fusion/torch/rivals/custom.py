"""Recognises what a user's own operators compute, by the definitions that came with them.

A match is a composite as others are: its operator may take the place of the members where that is
the cheapest. Its members are operators for which there may be kernels, and nothing else reads what
they compute, but for the result.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import tensor_operands
from blockbuster_fusion.torch.rivals.composites import Calling, Composite, gives_result
from blockbuster_fusion.torch.rivals.patterns import Bound, Pattern

_numbers = itertools.count()


@dataclass(frozen=True)
class CustomOperator:
    """A user's operator, with the definition of what it computes."""

    operator: torch._ops.OpOverload
    pattern: Pattern = field(repr=False)
    arguments: tuple[Any, ...] = field(repr=False)
    """The arguments of a call: numbers of operands as `Place`, and constants."""
    number: int = field(default_factory=_numbers.__next__, repr=False)
    """Tells it apart from one of the same name whose code was another."""


@dataclass(frozen=True)
class Place:
    """An argument that is an operand, by its number."""

    number: int


@dataclass(frozen=True)
class Custom(Composite):
    """Operators of a graph that a user's operator computes."""

    declared: CustomOperator
    given: tuple[Node, ...]

    @property
    def operator(self) -> torch._ops.OpOverload:
        return self.declared.operator

    @property
    def operands(self) -> tuple[Node | None, ...]:
        return self.given

    @property
    def form(self) -> tuple[object, ...]:
        return (self.declared.number,)

    def computed(self, calling: Calling, *operands: Any) -> Any:
        arguments = self.declared.arguments
        given = (operands[x.number] if isinstance(x, Place) else x for x in arguments)
        return calling(self.operator, tuple(given))


def found_custom(analysis: Analysis, declared: Sequence[CustomOperator]) -> list[Custom]:
    """All places of a graph where a user's operator computes the result in the form it has."""
    found = (
        _custom(x, node, analysis)
        for x in declared
        for node in analysis.nodes
        if node.target is x.pattern.result.target
    )
    return [x for x in found if x is not None]


def _custom(declared: CustomOperator, result: Node, analysis: Analysis) -> Custom | None:
    """The match of a user's operator that computes a result, or None."""
    bound = declared.pattern.matched(result)
    if bound is None:
        return None
    given = tuple(bound[x] for x in declared.pattern.operands)
    inner = _computed(bound, given, analysis)
    is_read = any(user not in inner for n in inner if n is not result for user in n.users)
    if is_read or not inner.isdisjoint(given):
        return None
    members = tuple(n for n in analysis.operators if n in inner)
    if not members or any(_is_foreign(n, analysis) for n in members):
        return None
    made = Custom(result, members, declared, given)
    return made if gives_result(made) else None


def _computed(bound: Bound, given: Sequence[Node], analysis: Analysis) -> set[Node]:
    """The nodes of a match but for those that are there anyway: views of operands, and masks."""
    free = {*given}
    found: set[Node] = set()
    matched = {node for pattern, node in bound.items() if pattern.op == "call_function"}
    for node in (n for n in analysis.nodes if n in matched):
        is_view = analysis.kind(node) is Kind.VIEW and free.issuperset(tensor_operands(node))
        if node in analysis.recomputed or is_view:
            free.add(node)
        else:
            found.add(node)
    return found


def _is_foreign(node: Node, analysis: Analysis) -> bool:
    """True for an operator that no kernel is meant to compute, or that writes in place."""
    return analysis.kind(node) is Kind.MISC or node in analysis.updates
