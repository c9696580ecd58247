"""Operators of a captured graph as a selection sees them."""

import math
from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.select.operators import Kind, Operator, Read
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import (
    LOOKUPS,
    operand,
    short_name,
    tensor_of,
    tensor_operands,
    tensors_of,
)
from blockbuster_fusion.torch.capture.symbolic import as_size
from blockbuster_fusion.torch.capture.touched import bytes_of, touched


def described(
    analysis: Analysis, length: Length, some: Collection[Node] | None = None
) -> list[Operator]:
    """A description of each operator that is to be put into a part, or of some, in order.

    `length` gives the lengths of symbolic sizes; of those that only data tell, nothing counts.
    """

    def known(size: Any) -> int:
        try:
            return length(size)
        except (KeyError, AttributeError):  # or of a nested array, whose rows differ
            return 0

    number = {node: i for i, node in enumerate(analysis.operators)}
    stored, forms, sizes = _stored(analysis), _Forms(analysis), _Sizes(known)
    found = []
    for node, roots in analysis.needs.items():
        if some is not None and node not in some:
            continue
        found.append(
            Operator(
                node.name,
                analysis.kind(node),
                tuple(dict.fromkeys(number[r] for r in roots if r in number)),
                _reads(analysis, node, sizes),
                _written(analysis, node, sizes),
                *_product(analysis, node, known),
                str(tensor_of(node).dtype).split(".")[1] if tensors_of(node) else "float32",
                forms.of(node),
                analysis.regions[node],
                has_weight=analysis.has_weight(node),
                is_stored=node in stored,
                is_output=node in analysis.outputs or analysis.has_returned_view(node),
                factors=_factors(analysis, node),
            )
        )
    return found


class _Sizes:
    """The bytes of nodes, each counted once."""

    def __init__(self, length: Length) -> None:
        self.length = length
        self.known: dict[Node, int] = {}

    def __call__(self, node: Node) -> int:
        if node not in self.known:
            self.known[node] = bytes_of(node, self.length)
        return self.known[node]


class _Forms:
    """The texts of operators: all but the arrays that each reads, which are numbered."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.shown: dict[Node, str] = {}
        """The results of nodes as texts."""

    def of(self, node: Node) -> str:
        return self.call(node, {})

    def call(self, node: Node, arrays: dict[Node, int]) -> str:
        """An operator as text; `arrays` are those that have their numbers already."""
        options = tuple(node.kwargs.items())
        return f"{node.target}{self.text((node.args, options), arrays)}->{self.result(node)}"

    def text(self, given: Any, arrays: dict[Node, int]) -> str:
        """An argument as text; views and what is computed anew are written out."""
        if isinstance(given, Node):
            return self.node(given, arrays)
        if isinstance(given, list | tuple):
            return "(" + ",".join([self.text(x, arrays) for x in given]) + ")"
        return str(given)

    def node(self, node: Node, arrays: dict[Node, int]) -> str:
        if not tensors_of(node):
            return str(node.meta.get("val"))
        is_call = node.op == "call_function"
        is_view = is_call and self.analysis.kind(node) is Kind.VIEW
        if is_call and (is_view or node in self.analysis.recomputed):
            return self.call(node, arrays)
        number = arrays.setdefault(node, len(arrays))
        weight = "w" if node in self.analysis.static else ""
        return f"{weight}{number}:{self.result(node)}"

    def result(self, node: Node) -> str:
        """The shapes, strides and dtypes of a node's results."""
        if node not in self.shown:
            tensors = tensors_of(node)
            self.shown[node] = ";".join(f"{[*t.shape]}{_strides(t)}{t.dtype}" for t in tensors)
        return self.shown[node]


def _strides(tensor: torch.Tensor) -> str:
    return str([*tensor.stride()]) if tensor.layout is torch.strided else str(tensor.layout)


def _reads(analysis: Analysis, node: Node, sizes: _Sizes) -> tuple[Read, ...]:
    """The arrays in memory that an operator reads, each with all that it sees of it."""
    shown: dict[Node, list[Node]] = {}
    stack, seen = tensor_operands(node), set[Node]()
    while stack:
        source = stack.pop()
        base = analysis.base(source)
        if analysis.is_scattered(node) and source is operand(node):
            continue  # it is written into, and not read
        if base in analysis.recomputed:
            if base not in seen and analysis.kind(base) is not Kind.GENERATOR:
                seen.add(base)
                stack += tensor_operands(base)
            continue
        shown.setdefault(base, []).append(source)
    found: dict[str, int] = {}
    for base, views in shown.items():
        size = sizes(base) if views == [base] else touched(base, views, sizes.length)
        if short_name(node) in LOOKUPS:
            size = min(size, sizes(node))
        name = analysis.owner(base).name
        found[name] = found.get(name, 0) + size
    return tuple(Read(name, size) for name, size in found.items())


def _written(analysis: Analysis, node: Node, sizes: _Sizes) -> int:
    """The bytes that an operator writes if its results are stored."""
    return sizes(operand(node, 2) if analysis.is_scattered(node) else node)


def flops_of(node: Node, length: Length) -> float:
    """The operations of a product: twice the elements of its result times what is summed."""
    left = node.args[1 if short_name(node) in ("addmm", "baddbmm") else 0]
    if not isinstance(left, Node) or short_name(node) == "convolution":
        return 0.0
    sizes = [*tensor_of(node).shape, tensor_of(left).shape[-1]]
    return 2.0 * math.prod(length(as_size(s)) for s in sizes)


def _product(analysis: Analysis, node: Node, length: Length) -> tuple[float, int, int]:
    """The operations of a product, the rows of its result, and their length; else zeros."""
    flops = flops_of(node, length) if analysis.kind(node) is Kind.CONTRACTION else 0.0
    if not flops:
        return 0.0, 0, 0
    *rows, width = (length(as_size(n)) for n in tensor_of(node).shape)
    return flops, math.prod(rows), width


def _factors(analysis: Analysis, node: Node) -> frozenset[str]:
    """The names of the arrays that a product multiplies, seen through views."""
    if analysis.kind(node) is not Kind.CONTRACTION:
        return frozenset()
    return frozenset(analysis.base(n).name for n in node.all_input_nodes[-2:])


def _stored(analysis: Analysis) -> set[Node]:
    """The operators whose readers need them in memory: these read slices of them, or look up."""
    indexed = [n for n in analysis.nodes if tensors_of(n) and analysis.is_indexed(n)]
    bases = [analysis.base(n) for n in indexed]
    for node in analysis.operators:
        if not _is_looked_up_before(analysis, node):
            bases += [analysis.base(n) for n in analysis.reads_in_memory(node)]
        if analysis.is_scattered(node):
            bases.append(node)  # it lies in an input
    return {analysis.owner(base) for base in bases}


def _is_looked_up_before(analysis: Analysis, node: Node) -> bool:
    """True if a node looks elements up in a table whose elements are computed by themselves.

    But for sums and the like, that is: then the lookup reads what they are computed from.
    """
    table = analysis.table(node)
    if table is None or analysis.is_scattered(node):
        return False
    maker = analysis.owner(analysis.base(table))
    is_by_element = analysis.kind(maker) in (Kind.POINTWISE, Kind.REDUCTION)
    return is_by_element and not analysis.is_scattered(maker)
