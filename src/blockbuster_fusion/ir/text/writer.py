"""Writing the text form of a program."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blockbuster_fusion.ir.axis import Axis, Dim, Extent, Symbol
from blockbuster_fusion.ir.combiner import SIMPLE, Combiner, Mode
from blockbuster_fusion.ir.expr import Expr, format_number
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Into,
    Iota,
    Join,
    Map,
    Misc,
    Node,
    Pick,
    Plain,
    Reduce,
    Rename,
    Scan,
    Take,
    Value,
)
from blockbuster_fusion.ir.text.expressions import write_exprs
from blockbuster_fusion.ir.text.scanner import name_or_string, quote
from blockbuster_fusion.ir.types import Type

_INDENT = "  "


def node_line(i: int, node: Node) -> str:
    """One line that shows a node with its operands and the types of its results."""
    head = Writer().statement(i, node)[0].removesuffix(" {")
    if isinstance(node.op, Input | Misc):
        return head
    return f"{head}: {', '.join(map(str, node.types))}"


class Writer:
    """Writes statements, and notes the axes and combiners to be declared at the head."""

    def __init__(self) -> None:
        self.axes: dict[Axis, None] = {}
        self.combiners: dict[Combiner, str] = {}

    def program(self, graph: Graph) -> str:
        body = list(self.graph(graph))
        combiners = [
            f"{_INDENT}{line}"
            for combiner, name in self.combiners.items()
            if combiner is not SIMPLE.get(name)
            for line in self.declaration(name, combiner)
        ]
        axes = [f"{_INDENT}axis {name_or_string(a.name)} = {_extent(a.extent)}" for a in self.axes]
        return "\n".join(["program {", *axes, *combiners, *body, "}", ""])

    def declaration(self, name: str, combiner: Combiner) -> Iterator[str]:
        written = write_exprs(combiner.combine, self.axis)
        yield f"combiner {name} = ({', '.join(map(format_number, combiner.identity))}) {{"
        for part, text in written.parts:
            yield f"{_INDENT}{part} = {text}"
        yield f"{_INDENT}return {', '.join(written.results)}"
        yield "}"

    def graph(self, graph: Graph) -> Iterator[str]:
        """The lines of a graph and of the maps in it, indented."""
        stack: list[tuple[Graph, Map | None, Iterator[tuple[int, Node]]]] = []
        stack.append((graph, None, iter(graph.nodes.items())))
        while stack:
            inner, around, rest = stack[-1]
            indent = _INDENT * len(stack)
            for i, node in rest:
                yield from (indent + line for line in self.statement(i, node))
                if isinstance(node.op, Map):
                    stack.append((node.op.body, node.op, iter(node.op.body.nodes.items())))
                    break
            else:
                yield from (indent + line for line in self.ending(inner, around))
                stack.pop()
                if around:
                    yield _INDENT * len(stack) + "}"

    def statement(self, i: int, node: Node) -> list[str]:
        """The lines of a node; those of a map's body are left out."""
        op = node.op
        operands = f"({', '.join(map(str, node.inputs))})"
        match op:
            case Input():
                text = f"input {quote(op.name)}: {self.type(op.type)}"
            case Elementwise():
                return self.elementwise(f"%{i} = apply{operands} ", op.expr)
            case BlockReduce():
                by = self.combiner(op.combiner)
                text = f"block_reduce{operands} over {self.dim(op.dim)} by {by}"
            case Scan():
                text = f"scan{operands} over {self.dim(op.dim)} by {self.combiner(op.combiner)}"
            case Dot():
                kind = "" if op.rounds_to is None else f" in {op.rounds_to}"
                text = f"dot{operands} over {self.dim(op.dim)}{kind}"
            case Take():
                text = f"take{operands} along {self.axis(op.axis)}"
            case Map():
                text = self.map_head(op, node.inputs)
            case Reduce():
                by = self.combiner(op.combiner)
                text = f"reduce{operands} over {self.dim(op.dim)} by {by}"
            case Rename():
                text = f"rename{operands} {self.axis(op.old)} -> {self.axis(op.new)}"
            case Pick():
                text = f"pick{operands} over {self.dim(op.dim)} at {op.index}"
            case Join():
                text = f"join{operands} over {self.dim(op.dim)}"
            case Iota():
                text = f"iota over {self.dim(op.dim)}"
            case Misc():
                text = f"misc{operands} {self.misc(op)}"
            case _:  # in an invalid graph, of which an error shows a line
                text = f"{type(op).__name__}{operands}"
        return [f"%{i} = {text}"]

    def elementwise(self, head: str, expr: Expr) -> list[str]:
        written = write_exprs((expr,), self.axis)
        (result,) = written.results
        if not written.parts:
            return [head + result]
        parts = (f"{_INDENT}{name} = {text}" for name, text in written.parts)
        return [head + "{", *parts, f"{_INDENT}return {result}", "}"]

    def map_head(self, op: Map, operands: Sequence[Value]) -> str:
        ports = ", ".join(
            f"{'each' if iterated else 'whole'} {operand}"
            for operand, iterated in zip(operands, op.iterated, strict=False)
        )
        first = f" from {op.first}" if op.first else ""
        return f"map({ports}) over {self.dim(op.dim)}{first} {{"

    def misc(self, op: Misc) -> str:
        text = f"{name_or_string(op.namespace)}.{name_or_string(op.name)}"
        if op.attributes:
            attributes = (f"{name_or_string(str(key))} = {_plain(v)}" for key, v in op.attributes)
            text += f" {{{', '.join(attributes)}}}"
        if op.layouts:
            text += " of " + ", ".join(f"[{' '.join(map(self.axis, a))}]" for a in op.layouts)
        if op.results:
            text += f": {', '.join(map(self.type, op.results))}"
        return text

    def ending(self, graph: Graph, around: Map | None) -> Iterator[str]:
        """The lines after a graph's nodes: its outputs, and its inputs if their order differs."""
        found = tuple(i for i, node in graph.nodes.items() if isinstance(node.op, Input))
        if found != graph.inputs:
            yield f"inputs {', '.join(f'%{i}' for i in graph.inputs)}"
        if around is None:
            for out in graph.outputs:
                yield (
                    f"output {quote(out.name)} = {out.value}{self.layout(out.axes)}"
                    f"{self.into(graph, out.into)}"
                )
            return
        yields = (
            f"{out.value} {self.mode(mode)}"
            f"{' ' + quote(out.name) if out.name else ''}{self.layout(out.axes)}"
            for out, mode in zip(graph.outputs, around.modes, strict=False)
        )
        yield f"yield {', '.join(yields)}".rstrip()

    def into(self, graph: Graph, into: Into | None) -> str:
        if into is None:
            return ""
        base, index = (f"%{graph.inputs[i]}" for i in (into.base, into.index))
        return f" into {base} along {self.axis(into.axis)} at {index}"

    def mode(self, mode: Mode) -> str:
        if mode is None:
            return "stack"
        name = self.combiner(mode.combiner)
        alone = mode.combiner.arity == 1 and mode.component == 0
        return name if alone else f"{name}:{mode.component}"

    def combiner(self, combiner: Combiner) -> str:
        """The name of a combiner: its own, with a number if that is taken."""
        if combiner not in self.combiners:
            name, number = name_or_string(combiner.name), 1
            taken = {"stack", *SIMPLE, *self.combiners.values()}
            if SIMPLE.get(name) is combiner:
                taken.discard(name)
            while (label := name if number == 1 else f"{name}'{number}") in taken:
                number += 1
            self.combiners[combiner] = label
        return self.combiners[combiner]

    def layout(self, axes: Sequence[Axis]) -> str:
        return f" [{' '.join(map(self.axis, axes))}]" if axes else ""

    def type(self, t: Type) -> str:
        lists, items = " ".join(map(self.dim, t.lists)), " ".join(map(self.dim, t.items))
        return f"{'virtual ' if t.virtual else ''}[{lists}]({items}){t.dtype}"

    def dim(self, dim: Dim) -> str:
        index = "*" if dim.index is None else dim.index
        blocks = ("/all" if dim.unit else "") if dim.packed else "/1"
        return f"{self.axis(dim.axis)}.{index}{blocks}"

    def axis(self, axis: Axis) -> str:
        self.axes[axis] = None
        return name_or_string(axis.name)


def _extent(extent: Extent) -> str:
    return name_or_string(extent.name) if isinstance(extent, Symbol) else str(extent)


def _plain(value: Plain) -> str:
    """The value of an attribute; tuples may be nested to any depth."""
    text: list[str] = []
    stack: list[Plain | _Mark] = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, _Mark):
            text.append(part.text)
        elif isinstance(part, tuple):
            stack.append(_Mark(")"))
            for at, inner in reversed(list(enumerate(part))):
                stack.append(inner)
                stack.append(_Mark(", " if at else "("))
            if not part:
                stack.append(_Mark("("))
        elif isinstance(part, str):
            text.append(quote(part))
        else:
            text.append("None" if part is None else format_number(part))
    return "".join(text)


@dataclass(frozen=True, slots=True)
class _Mark:
    """Punctuation among the values that are still to be written."""

    text: str
