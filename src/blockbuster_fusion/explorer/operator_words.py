"""Operators by name: the one that makes a list, and those that read it."""

import re
from collections.abc import Iterator

from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import Listed
from blockbuster_fusion.ir.ops import Input, Map, Pick, Reduce, Rename, Value

MOVED = re.compile(r"t\d+ = (load|index)\(|store\(|forall |for |with ")
"""A statement that computes nothing."""
LONGEST = 22
"""The most letters of an operator's name."""
_TARGET = re.compile(r"^(?:t\d+(?:,t\d+)*) (?:[+*]?=) ")
_CALL = re.compile(r"(\w+)\(")
_OPERAND = re.compile(r"\bt\d+\b")


def statements(graph: Graph, found: Listed) -> dict[int, str]:
    """The statement of the listing for each node, without loads and stores; a map has its loop."""
    maps = {i for _, inner in graph.walk() for i, _ in inner.maps()}
    made: dict[int, str] = {}
    for line, node in zip(found.lines, found.nodes, strict=True):
        text = line.strip()
        if (node in maps and text.startswith("for")) or not MOVED.match(text):
            made.setdefault(node, text)
    return made


def operator_name(statement: str) -> str:
    """The function that a statement calls, or its expression with x and y for operands."""
    value = _TARGET.sub("", statement)
    call = _CALL.match(value)
    if call is not None and _is_whole(value, call.end() - 1):
        return call[1]
    seen: dict[str, str] = {}
    letters = iter("xyzuvw")

    def letter(match: re.Match[str]) -> str:
        if match[0] not in seen:
            seen[match[0]] = next(letters, "…")
        return seen[match[0]]

    text = _OPERAND.sub(letter, value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _is_whole(text: str, start: int) -> bool:
    """True if the bracket at `start` is closed by the last letter."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at == len(text) - 1
    return False


class Operators:
    """The operators of a program by their names in its listing."""

    def __init__(self, graph: Graph, found: Listed) -> None:
        self.text = statements(graph, found)

    def of(self, graph: Graph, node: int) -> list[str]:
        """The names of a node; of a map, those of the operators that make its results."""
        op = graph.op(node)
        if isinstance(op, Map):
            made = (self.maker(op.body, out.value) for out in op.body.outputs)
            return list(dict.fromkeys(name for name in made if name))
        if isinstance(op, Reduce):
            return [f"{'sum' if op.combiner is ADD else 'reduction'} over {op.dim}"]
        text = self.text.get(node, "")
        return [operator_name(text) if text else type(op).__name__.lower()]

    def maker(self, graph: Graph, value: Value) -> str:
        """The operator that makes a value, in however many loops; empty for an input."""
        op = graph.op(value.node)
        while isinstance(op, Map | Rename | Pick):
            if isinstance(op, Map):
                graph, value = op.body, op.body.outputs[value.port].value
            else:
                (value,) = graph[value.node].inputs
            op = graph.op(value.node)
        return "" if isinstance(op, Input) else self.of(graph, value.node)[0]

    def readers(self, graph: Graph, node: int, value: Value) -> list[str]:
        """The operators in a node that read a value, in however many loops."""
        return list(dict.fromkeys(self._readers(graph, node, value)))

    def _readers(self, graph: Graph, node: int, value: Value) -> Iterator[str]:
        left = [(graph, node, value)]
        while left:
            graph, node, value = left.pop(0)
            op = graph.op(node)
            if isinstance(op, Map):
                inner = [
                    Value(op.body.inputs[port])
                    for port, given in enumerate(graph[node].inputs)
                    if given == value
                ]
                for own in inner:
                    users = [i for i, each in op.body.nodes.items() if own in each.inputs]
                    left += [(op.body, i, own) for i in users]
            elif isinstance(op, Rename | Pick):
                users = [i for i, each in graph.nodes.items() if Value(node) in each.inputs]
                left += [(graph, i, Value(node)) for i in users]
            else:
                yield self.of(graph, node)[0]
