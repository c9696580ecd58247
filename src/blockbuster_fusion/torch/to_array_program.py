"""Expresses the nodes of a part as one array program."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.array.positional import PositionalBuilder
from blockbuster_fusion.array.primitives import Given
from blockbuster_fusion.array.records import PlacedArray, PositionalArray, PositionalProgram
from blockbuster_fusion.errors import BlockbusterError, NotExpressible
from blockbuster_fusion.ir.expr import cast as cast_expr
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import (
    CASTS,
    name_of,
    operand,
    short_name,
    tensor_of,
    tensors_of,
)
from blockbuster_fusion.torch.capture.operators import (
    SCANS,
    concatenated,
    is_whole_slice,
    lookup_axis,
)
from blockbuster_fusion.torch.capture.symbolic import as_size
from blockbuster_fusion.torch.table import row_for
from blockbuster_fusion.torch.table.generators import computed, counted
from blockbuster_fusion.torch.table.pointwise import converted
from blockbuster_fusion.torch.table.row import DTYPES, Row
from blockbuster_fusion.torch.table.views import taken

EXACTNESS = (torch.bfloat16, torch.float16, torch.float32)
"""Floats that kernels multiply as float32 or less, the least exact first."""
SHAPED = {"view": 1, "_unsafe_view": 1, "reshape": 1, "expand": 1, "full": 0}
"""The number of the argument that is the shape of an operator's result."""


class Unexpressed(BlockbusterError):
    """A node cannot be expressed in the program of its part."""

    template = "{operator}: {reason}"

    @property
    def at(self) -> Node:
        found = self.details["node"]
        assert isinstance(found, Node)
        return found


@dataclass(frozen=True)
class ElidedCast:
    """A conversion between floats that fusion has made unnecessary."""

    name: str
    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.name}: {self.source} -> {self.target}"


@dataclass(frozen=True)
class PartProgram:
    """The nodes of a part as one array program."""

    nodes: tuple[Node, ...]
    expressed: PositionalProgram
    storage: dict[str, DType]
    """The dtypes in memory of the program's inputs and outputs."""
    results: tuple[Node, ...]
    elided: tuple[ElidedCast, ...]
    covered: tuple[Node, ...]
    """All nodes that it computes, including those that other parts compute as well."""


class PartBuilder:
    """Expresses a part, node by node."""

    def __init__(self, analysis: Analysis, nodes: Sequence[Node], name: str, strict: bool) -> None:
        self.analysis, self.nodes, self.strict = analysis, tuple(nodes), strict
        self.inside = set(nodes)
        self.program = PositionalBuilder(name)
        self.values: dict[Node, Any] = {}
        self.storage: dict[str, DType] = {}
        self.elided: dict[Node, ElidedCast] = {}
        self.covered: dict[Node, None] = {}
        self.inputs = 0

    def part(self, results: Sequence[Node]) -> PartProgram:
        """The program of the part with these results; or Unexpressed."""
        for node in self.nodes:
            try:
                self.value(node)
            except BlockbusterError as error:
                raise Unexpressed(operator=name_of(node), reason=error, node=node) from error
        outputs: dict[str, PositionalArray | PlacedArray] = {}
        kept: dict[int, DType] = {}
        for i, node in enumerate(results):
            name = f"O{i + 1}" if len(results) > 1 else "O"
            self.storage[name] = DTYPES[tensor_of(node).dtype]
            try:
                outputs[name] = self.output(node, self.storage[name], kept)
            except NotExpressible as error:
                raise Unexpressed(operator=name_of(node), reason=error, node=node) from error
        try:
            expressed = self.program.finish(outputs)
        except BlockbusterError as error:
            last = self.nodes[-1]
            raise Unexpressed(operator=name_of(last), reason=error, node=last) from error
        storage = {layout.name: self.storage[layout.source] for layout in expressed.inputs}
        storage |= {name: self.storage[name] for name in outputs}
        return PartProgram(
            self.nodes,
            expressed,
            storage,
            tuple(results),
            tuple(self.elided.values()),
            tuple(self.covered),
        )

    def output(
        self, node: Node, dtype: DType, kept: dict[int, DType]
    ) -> PositionalArray | PlacedArray:
        """The output of the program for a node: an array, or rows that are put into an input."""
        if not self.analysis.is_scattered(node):
            return self.result(self.value(node), dtype, kept)
        scatter = self.analysis.scatters[node]
        base, places = (self.argument(n, is_table=True) for n in (operand(node), scatter.index))
        rows = self.value(node).with_rank(scatter.rank)
        rows = self.program.permute(rows, [p for p in scatter.order if p is not None])
        if None in scatter.order:
            rows = self.program.insert(rows, scatter.axis)
        return self.program.placed(base, places, scatter.axis, rows, scatter.along)

    def result(
        self, value: PositionalArray, dtype: DType, kept: dict[int, DType]
    ) -> PositionalArray:
        """A value that may be stored as `dtype`.

        A copy of an input, and of what is stored with another dtype as well: conversions between
        floats are no operators of the program.
        """
        made = self.program.primitive(value)
        if isinstance(made, Given) or kept.get(value.record, dtype) is not dtype:
            value = self.program.elementwise(lambda t: t, value)
        kept[value.record] = dtype
        return value

    def value(self, node: Node) -> Any:
        """The value of a node, expressed if it is not yet."""
        if node not in self.values:
            for n in self.order(node):
                if n not in self.values:
                    self.values[n] = self.made(n)
        return self.values[node]

    def order(self, node: Node) -> list[Node]:
        """The node and what it needs that is not yet expressed, operands first."""
        found: dict[Node, None] = {}
        stack = [(node, False)]
        while stack:
            n, ready = stack.pop()
            if n in self.values or n in found:
                continue
            if ready or not self.is_expressed_here(n):
                found[n] = None
                continue
            stack.append((n, True))
            if self.analysis.kind(n) is not Kind.GENERATOR:
                stack.extend((m, False) for m in n.all_input_nodes if tensors_of(m))
        return [*found]

    def is_expressed_here(self, node: Node) -> bool:
        """True if the part computes a node itself, and False if it is an input."""
        if node in self.inside:
            return True
        if node.op != "call_function" or self.analysis.kind(node) is Kind.MISC:
            return False
        base = self.analysis.base(node)
        if self.analysis.owner(base) not in self.inside:
            is_given = (
                self.analysis.stored_view(node) is node and node not in self.analysis.recomputed
            )
            if is_given and (base is not node or self.analysis.is_element(node)):
                return False
        return node in self.analysis.recomputed or self.analysis.kind(node) is Kind.VIEW

    def made(self, node: Node) -> Any:
        """The value of a node whose operands are expressed."""
        if not self.is_expressed_here(node):
            return self.as_input(node)
        if self.analysis.is_scattered(node):
            self.covered[node] = None
            return self.value(operand(node, 2))
        try:
            return self.expressed(node)
        except NotExpressible:
            if node in self.inside or self.depends_on_inside(node):
                raise
            return self.as_input(node)  # a view, or a cheap node, that is computed outside

    def depends_on_inside(self, node: Node) -> bool:
        """True if a node depends on a node of the part, without an input between them."""
        stack, seen = [node], set[Node]()
        while stack:
            n = stack.pop()
            if n in self.inside:
                return True
            if n not in seen and self.is_expressed_here(n):
                seen.add(n)
                stack.extend(n.all_input_nodes)
        return False

    def as_input(self, node: Node) -> PositionalArray:
        """A node as an input of the program."""
        (tensor,) = tensors_of(node)[:1]
        if tensor.dtype not in DTYPES:
            raise NotExpressible(what=f"an input of {tensor.dtype}")
        name = self.input_name()
        wide = computed(tensor.dtype)
        self.storage[node.name] = DTYPES[tensor.dtype]
        return self.program.input(name, [as_size(s) for s in tensor.shape], wide, node.name)

    def input_name(self) -> str:
        """A new name for an input, equal in equal layers: x, x2, x3, …"""
        self.inputs += 1
        return "x" if self.inputs == 1 else f"x{self.inputs}"

    def expressed(self, node: Node) -> Any:
        """The value of a node, by its row of the operator table."""
        analysis = self.analysis
        if node.target is operator.getitem:
            return self.element(node)
        if is_whole_slice(node):
            return self.value(node.args[0])  # type: ignore[arg-type]
        row = row_for(node.target)
        assert row is not None, node
        tensor = tensor_of(node)
        if row.kind is not Kind.VIEW:
            self.covered[node] = None
        if short_name(node) == "arange":
            made: Any = self.counting(node, tensor)
        elif name_of(node) in CASTS:
            made = self.cast(node, tensor)
        elif short_name(node) == "index" and analysis.kind(node) is Kind.POINTWISE:
            self.covered[node] = None
            x, indices = self.arguments(node, tensor)
            at = lookup_axis(node)
            assert at is not None
            made = taken(self.program, x, indices, at)
        elif short_name(node) == "full_like":
            fill = self.argument(node.args[1])
            made = row.emit(self.program, [as_size(s) for s in tensor.shape], fill, tensor.dtype)
        elif short_name(node) == "constant_pad_nd":
            given: Any = node.args
            x = self.argument(given[0], is_table=True)
            pads, *fill = ([self.argument(a) for a in given[1]], *map(self.argument, given[2:]))
            made = row.emit(self.program, x, [as_size(s) for s in tensor.shape], pads, *fill)
        elif short_name(node) == "cat":
            pieces, dim = concatenated(node)
            wanted = DTYPES[tensor.dtype]
            values = [converted(self.program, self.value(p), wanted) for p in pieces]
            made = self.program.stack(values, dim)
        else:
            made = self.emitted(node, tensor, row)
        if isinstance(made, PositionalArray):
            return converted(self.program, made, DTYPES[tensor.dtype])
        return made

    def emitted(self, node: Node, tensor: torch.Tensor, row: Row) -> Any:
        """What the row of an operator gives; a scan may read a view as it lies in memory.

        A view that merges axes has several under one position, along which nothing is scanned.
        """
        program = self.program.multiplying_in(self.rounding(tensor))
        try:
            return row.emit(program, *self.arguments(node, tensor), **self.options(node))
        except NotExpressible:
            if short_name(node) not in SCANS or self.depends_on_inside(operand(node)):
                raise
        self.values[operand(node)] = self.as_input(operand(node))
        return row.emit(program, *self.arguments(node, tensor), **self.options(node))

    def rounding(self, tensor: torch.Tensor) -> DType | None:
        """The dtype in which a product of this result multiplies.

        None if no float of the part is less exact, to which kernels could round its operands.
        """
        if tensor.dtype not in EXACTNESS:
            return None
        less = EXACTNESS[: EXACTNESS.index(tensor.dtype)]
        return None if self.floats.isdisjoint(less) else DTYPES[tensor.dtype]

    @cached_property
    def floats(self) -> frozenset[torch.dtype]:
        """The dtypes of the arrays that the part makes or reads."""
        seen, stack = dict.fromkeys(self.nodes), [*self.nodes]
        while stack:
            node = stack.pop()
            if self.is_expressed_here(node):
                found = [n for n in node.all_input_nodes if n not in seen and tensors_of(n)]
                seen |= dict.fromkeys(found)
                stack += found
        return frozenset(tensor.dtype for node in seen for tensor in tensors_of(node))

    def element(self, node: Node) -> Any:
        at: Any = node.args[1]
        made = self.value(operand(node))
        if not isinstance(made, tuple):
            raise NotExpressible(what="a part of an array that is computed in the same kernel")
        return made[at]

    def counting(self, node: Node, tensor: torch.Tensor) -> PositionalArray:
        bounds = [self.argument(a) for a in node.args]
        start = bounds[0] if len(bounds) > 1 else 0
        step = bounds[2] if len(bounds) > 2 else 1
        extent = as_size(tensor.shape[0])
        fractional = isinstance(start, float) or isinstance(step, float)
        if not tensor.dtype.is_floating_point and fractional:
            raise NotExpressible(what="an arange of fractions")
        return counted(self.program, extent, start, step, DTYPES[tensor.dtype])

    def cast(self, node: Node, tensor: torch.Tensor) -> PositionalArray:
        """A conversion; between floats that are computed alike, only a rounding that matters."""
        (source,) = [n for n in node.all_input_nodes if tensors_of(n)]
        x: PositionalArray = self.value(source)
        before, after = tensor_of(source).dtype, tensor.dtype
        both_float = before.is_floating_point and after.is_floating_point
        if not both_float or before is after:
            return x
        wide, narrow = computed(after), DTYPES[after]
        x = converted(self.program, x, wide)
        rounds = torch.finfo(after).bits < torch.finfo(before).bits and narrow is not wide
        if rounds and (self.strict or self.analysis.is_rounding_observed(node)):
            return self.program.elementwise(
                lambda t: cast_expr(cast_expr(t, narrow), wide), x, dtype=wide
            )
        if tensor.dim() and computed(before) is wide:
            self.elided[node] = ElidedCast(node.name, str(before), str(after))
        return x

    def arguments(self, node: Node, tensor: torch.Tensor) -> list[Any]:
        shape = SHAPED.get(short_name(node))
        table = self.analysis.table(node)
        return [
            [as_size(s) for s in tensor.shape]
            if i == shape
            else self.argument(a, is_table=a is table)
            for i, a in enumerate(node.args)
        ]

    def options(self, node: Node) -> dict[str, Any]:
        unused = ("layout", "device", "pin_memory", "memory_format", "non_blocking")
        return {k: self.argument(v) for k, v in node.kwargs.items() if k not in unused}

    def argument(self, given: Any, *, is_table: bool = False) -> Any:
        """An argument of an operator as the operator table takes it."""
        if isinstance(given, Node):
            if is_table and not self.depends_on_inside(given):
                return self.as_input(given)  # an axis that is looked up may not be split
            if tensors_of(given):
                return self.value(given)
            return self.number(given)
        if isinstance(given, list | tuple):
            if any(isinstance(x, Node) and not tensors_of(x) for x in given):
                return [self.extent(x) for x in given]
            return [self.argument(x) for x in given]
        return given

    def extent(self, given: Any) -> Any:
        if isinstance(given, Node):
            return as_size(given.meta["val"])
        return given

    def number(self, node: Node) -> Any:
        """The value of a size that is used as a number: a constant, or an input without axes."""
        value = node.meta.get("val")
        if isinstance(value, int | float | bool):
            return value
        if isinstance(value, torch.SymInt):
            if node not in self.values:
                name = self.input_name()
                self.storage[node.name] = DType.int64
                self.values[node] = self.program.input(name, (), DType.int64, node.name)
            return self.values[node]
        raise NotExpressible(what=f"an argument that is a {type(value).__name__}")
