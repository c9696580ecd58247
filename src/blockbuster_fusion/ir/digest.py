"""The structural digest: equal for programs that differ only in ids and names."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.combiner import Combiner
from blockbuster_fusion.ir.expr import Expr, postorder
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Input,
    Into,
    Map,
    Misc,
    Op,
)
from blockbuster_fusion.ir.types import Type

if TYPE_CHECKING:
    from blockbuster_fusion.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Digest:
    """A graph's hash, and the dims, axes and symbols that it numbers, in order of appearance.

    The graph around a body adds its own numbers of these, so that shared dims count and names do
    not.
    """

    hex: str
    mentions: tuple[Dim | Axis | Symbol, ...]


class _Numbering:
    """Numbers in order of appearance, for dims, axes and symbols."""

    def __init__(self) -> None:
        self.numbers: dict[Dim | Axis | Symbol, int] = {}

    def of(self, thing: Dim | Axis | Symbol) -> str:
        if thing in self.numbers:
            return f"#{self.numbers[thing]}"
        described = self._describe(thing)  # numbers what it mentions first
        self.numbers[thing] = len(self.numbers)
        return f"#{self.numbers[thing]}={described}"

    def _describe(self, thing: Dim | Axis | Symbol) -> str:
        match thing:
            case Symbol():
                return "symbol"
            case Axis():
                extent = thing.extent
                return f"axis {extent if isinstance(extent, int) else self.of(extent)}"
            case Dim():
                kind = "free" if thing.is_free else "dim"
                return f"{kind} {self.of(thing.axis)} {thing.packed} {thing.unit}"


def compute_digest(graph: "Graph") -> Digest:
    """The digest of a graph."""
    number = _Numbering()
    lines = [f"in {_type(graph.type_of_input(i), number)}" for i in range(len(graph.inputs))]
    order = {i: at for at, i in enumerate(graph.inputs)}
    for i in _from_outputs(graph):
        if i in order:
            continue
        node = graph.nodes[i]
        operands = ",".join(f"{order[v.node]}.{v.port}" for v in node.inputs)
        lines.append(f"{_op(node.op, number)}({operands})")
        order[i] = len(order)
    for out in graph.outputs:
        axes = ",".join(number.of(a) for a in out.axes)
        into = "" if out.into is None else _into(out.into, number)
        lines.append(f"out {order[out.value.node]}.{out.value.port} [{axes}]{into}")
    text = "\n".join(lines)
    return Digest(hashlib.sha256(text.encode()).hexdigest(), tuple(number.numbers))


def _into(into: Into, number: _Numbering) -> str:
    return f" into {into.base} at {into.index} along {number.of(into.axis)}"


def _from_outputs(graph: "Graph") -> list[int]:
    """Nodes depth first from the outputs, operands before users: blind to ids and order."""
    made: dict[int, None] = {}
    stack = [(out.value.node, False) for out in reversed(graph.outputs)]
    while stack:
        i, ready = stack.pop()
        if i in made:
            continue
        if ready:
            made[i] = None
        else:
            stack.append((i, True))
            stack.extend((v.node, False) for v in reversed(graph.nodes[i].inputs))
    return list(made)


def _type(t: Type, number: _Numbering) -> str:
    lists = " ".join(number.of(d) for d in t.lists)
    items = " ".join(number.of(d) for d in t.items)
    return f"[{lists}]({items}){t.dtype}{t.virtual}"


def _op(op: Op, number: _Numbering) -> str:
    match op:
        case Input():
            return "input"
        case Map():
            inner = op.body.structure
            mentions = " ".join(number.of(m) for m in inner.mentions)
            modes = ",".join(
                f"{_combiner(m.combiner, number)}.{m.component}" if m else "stack" for m in op.modes
            )
            flags = "".join("i" if i else "w" for i in op.iterated)
            return f"map {number.of(op.dim)} {op.first} {flags} {modes} {inner.hex} {mentions}"
        case Misc():
            kinds = " ".join(_type(t, number) for t in op.results)
            layouts = "/".join(" ".join(number.of(a) for a in axes) for axes in op.layouts)
            return f"misc {op.namespace!r} {op.name!r} {op.attributes!r} {kinds} {layouts}"
        case Dot():
            kind = "" if op.rounds_to is None else f" in {op.rounds_to}"
            return f"dot {number.of(op.dim)}{kind}"
    name = "block" if isinstance(op, BlockReduce) else type(op).__name__.lower()
    fields = (_field(getattr(op, field), number) for field in op.__match_args__)
    return f"{name} {' '.join(fields)}"


def _field(value: Dim | Axis | Expr | Combiner | int, number: _Numbering) -> str:
    match value:
        case Dim() | Axis():
            return number.of(value)
        case Expr():
            return _expr(value, number)
        case Combiner():
            return _combiner(value, number)
    return str(value)


def _combiner(combiner: Combiner, number: _Numbering) -> str:
    parts = ";".join(_expr(e, number) for e in combiner.combine)
    return f"{combiner.identity!r} {parts}"


def _expr(expr: Expr, number: _Numbering) -> str:
    at: dict[Expr, int] = {}
    parts: list[str] = []
    for node in postorder(expr):
        value = number.of(node.value) if isinstance(node.value, Axis) else repr(node.value)
        operands = ",".join(str(at[a]) for a in node.args)
        parts.append(f"{node.op} {value} {operands}")
        at[node] = len(at)
    return "|".join(parts)
