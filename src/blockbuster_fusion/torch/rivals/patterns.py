"""Matches a definition in a captured graph: the same operators, constants and sizes.

A pattern is a captured definition, whose sizes are symbols. A match is sought from the result
backwards. Operands are inputs of the pattern, and stand for any array of the same dtype and rank.
The operands of a sum or a product may be swapped. Shapes of all results have to agree, once the
symbols are what the shapes of the operands make them; so do conditions on them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import Node

from blockbuster_fusion.messages import log
from blockbuster_fusion.torch.capture.fakes import fake_mode_of
from blockbuster_fusion.torch.capture.nodes import tensor_of, tensor_operands, tensors_of
from blockbuster_fusion.torch.capture.symbolic import expression_of

aten = torch.ops.aten
SHOWN = ("size", "dtype", "layout", "device", "pin_memory")
"""Arguments that the result shows: its shape, its dtype and its place."""
AXES = ("dim", "dims", "dim0", "dim1")
COMMUTATIVE = (aten.add.Tensor, aten.mul.Tensor, aten.maximum.default, aten.minimum.default)
MOST_STEPS = 10_000
"""The number of pairs of nodes that are compared for one result, at most."""
ROUNDING = 1e-12
"""The relative error of a number that is computed from sizes."""

Bound = dict[Node, Node]
"""The nodes of a graph that the nodes of a pattern stand for."""
Equation = tuple[Any, Any]
"""A number of the pattern, with symbols, and the number of the graph that it has to be."""


@dataclass(frozen=True)
class Pattern:
    """A captured definition."""

    operands: tuple[Node, ...]
    result: Node
    conditions: tuple[Any, ...]
    """The conditions on its symbols under which it was captured."""
    is_contiguous: tuple[bool, ...]
    """For each operand, True if it has to be contiguous."""

    def matched(self, result: Node) -> Bound | None:
        """The nodes of a graph that this stands for, with a result; or None."""
        for bound, equations in self._alike(result):
            if self._fits(bound, equations):
                return bound
        return None

    def _alike(self, result: Node) -> Iterator[tuple[Bound, list[Equation]]]:
        """The ways in which operators and constants agree, with the numbers still to compare."""
        start: tuple[list[tuple[Node, Node]], Bound, list[Equation]]
        start = ([(self.result, result)], {}, [])
        stack, steps = [start], 0
        while stack:
            pairs, bound, equations = stack.pop()
            if not pairs:
                yield bound, equations
                continue
            steps += 1
            if steps > MOST_STEPS:
                log.debug("%s: too many ways to match it", self.result.name)
                return
            (mine, theirs), rest = pairs[-1], pairs[:-1]
            if mine in bound:
                if bound[mine] is theirs:
                    stack.append((rest, bound, equations))
                continue
            if not _is_alike(mine, theirs):
                continue
            for arguments in reversed([*_orders(theirs)] if mine.op == "call_function" else [{}]):
                compared = _compared(_arguments(mine), arguments)
                if compared is not None:
                    more, numbers = compared
                    stack.append(([*rest, *more], {**bound, mine: theirs}, [*equations, *numbers]))

    def _fits(self, bound: Bound, equations: Sequence[Equation]) -> bool:
        """True if all operands are there, and sizes and layouts agree."""
        if not bound.keys() >= {*self.operands}:
            return False
        symbols: dict[Any, Any] = {}
        for x in self.operands:
            for mine, theirs in zip(tensor_of(x).shape, tensor_of(bound[x]).shape, strict=True):
                number = _expression(mine)
                if getattr(number, "is_Symbol", False):
                    symbols.setdefault(number, sympy.sympify(_expression(theirs)))
        shapes = [
            pair
            for mine, theirs in bound.items()
            for a, b in zip(tensors_of(mine), tensors_of(theirs), strict=True)
            for pair in zip(a.shape, b.shape, strict=True)
        ]
        if not all(_is_equal(a, b, symbols) for a, b in (*shapes, *equations)):
            return False
        if not all(_holds(x, symbols, bound[self.result]) for x in self.conditions):
            return False
        needed = zip(self.operands, self.is_contiguous, strict=True)
        return all(_lies_in_order(bound[x]) for x, is_needed in needed if is_needed)


def _is_alike(mine: Node, theirs: Node) -> bool:
    """True if two nodes have the same operator, and results of the same dtype and rank."""
    if mine.op == "placeholder":
        if not isinstance(theirs.meta.get("val"), torch.Tensor):
            return False
    elif theirs.op != "call_function" or mine.target is not theirs.target:
        return False
    pairs = [tensors_of(n) for n in (mine, theirs)]
    return len(pairs[0]) == len(pairs[1]) and all(
        (a.dtype, a.dim(), a.device.type, a.layout) == (b.dtype, b.dim(), b.device.type, b.layout)
        for a, b in zip(*pairs, strict=True)
    )


def _arguments(node: Node) -> dict[str, Any]:
    """The arguments of an operator by name, but for those that the result shows."""
    if node.op != "call_function":
        return {}
    if not isinstance(node.target, torch._ops.OpOverload):
        return {**{str(i): x for i, x in enumerate(node.args)}, **node.kwargs}
    known = node.target._schema.arguments
    given = {a.name: x for a, x in zip(known, node.args, strict=False)} | node.kwargs
    named = {a.name: given.get(a.name, a.default_value) for a in known if a.name not in SHOWN}
    read = (
        node if node.target is aten.unsqueeze.default else next(iter(tensor_operands(node)), node)
    )
    rank = tensor_of(read).dim() if tensors_of(read) else 0
    if node.target is aten.slice.Tensor:  # its end is shown too
        named |= {"start": named["start"] or 0, "end": None}
    return {name: _from_zero(x, rank) if name in AXES else x for name, x in named.items()}


def _from_zero(axes: Any, rank: int) -> Any:
    """Axes that are counted from the first one."""
    if isinstance(axes, list | tuple):
        return [_from_zero(axis, rank) for axis in axes]
    return axes % rank if type(axes) is int and rank else axes


def _orders(node: Node) -> Iterator[dict[str, Any]]:
    """The arguments of an operator; those of a commutative one, swapped too."""
    given = _arguments(node)
    yield given
    swapped = {**given, "self": given.get("other"), "other": given.get("self")}
    is_scaled = given.get("alpha", 1) != 1
    if node.target in COMMUTATIVE and isinstance(given["other"], Node) and not is_scaled:
        yield swapped


def _compared(mine: Any, theirs: Any) -> tuple[list[tuple[Node, Node]], list[Equation]] | None:
    """The arrays among arguments, in pairs, and numbers to compare; None if they differ."""
    nodes: list[tuple[Node, Node]] = []
    numbers: list[Equation] = []
    stack = [(mine, theirs)]
    while stack:
        a, b = stack.pop()
        if isinstance(a, dict):
            if a.keys() != b.keys():
                return None
            stack += [(a[name], b[name]) for name in a]
        elif isinstance(a, list | tuple):
            if not isinstance(b, list | tuple) or len(a) != len(b):
                return None
            stack += zip(a, b, strict=True)
        elif _is_array(a) or _is_array(b):
            if not (_is_array(a) and _is_array(b)):
                return None
            nodes.append((a, b))
        elif isinstance(_expression(a), sympy.Basic):
            numbers.append((a, b))
        elif not _is_equal(a, b, {}):
            return None
    return nodes[::-1], numbers


def _is_array(x: object) -> bool:
    return isinstance(x, Node) and bool(tensors_of(x))


def _expression(x: Any) -> Any:
    """An argument as an expression, if it is computed from sizes; else as it is."""
    value = x.meta.get("val") if isinstance(x, Node) else x
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return expression_of(value)
    return value


def _is_equal(mine: Any, theirs: Any, symbols: Mapping[Any, Any]) -> bool:
    """True if an argument of the pattern is one of the graph, for given sizes."""
    a, b = _expression(mine), _expression(theirs)
    if not isinstance(a, sympy.Basic) and not isinstance(b, sympy.Basic):
        return type(a) is type(b) and a == b if isinstance(a, bool | None) else bool(a == b)
    if any(x is None or isinstance(x, str | bool) for x in (a, b)):
        return False
    a, b = sympy.sympify(a), sympy.sympify(b)
    difference = sympy.expand(a.xreplace(dict(symbols)) - b)
    if difference == 0:
        return True
    is_known = difference.is_number and b.is_number
    return is_known and math.isclose(float(difference + b), float(b), rel_tol=ROUNDING)


def _holds(condition: Any, symbols: Mapping[Any, Any], within: Node) -> bool:
    """True if a condition on the sizes of the pattern is known to hold in the graph."""
    found = condition.xreplace(dict(symbols))
    if found in (sympy.true, sympy.false):
        return bool(found)
    mode = getattr(tensor_of(within), "fake_mode", None)
    sizes = None if mode is None else mode.shape_env
    return sizes is not None and sizes._maybe_evaluate_static(found) == sympy.true


def _lies_in_order(node: Node) -> bool:
    with fake_mode_of(tensor_of(node)):
        return bool(tensor_of(node).is_contiguous())
