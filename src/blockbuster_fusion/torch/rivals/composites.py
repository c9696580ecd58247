"""Composites that are recognised in a captured graph: operators that one of PyTorch's computes.

A recognised composite is a choice for PyTorch's side only. Where PyTorch runs a part, its one
operator takes the place of the members, if that is faster. Kernels compute the members as they were
written.
"""

import operator
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.fx import Graph, Node

from blockbuster_fusion.torch.capture.fakes import fake_mode_of, inserted, known_form
from blockbuster_fusion.torch.capture.nodes import tensor_of
from blockbuster_fusion.torch.capture.symbolic import as_size

Calling = Callable[..., Any]
"""Calls an operator with a tuple of arguments and options: on arrays, or as a node of a graph."""

Called = Mapping[torch._ops.OpOverload, int]
"""The number of times that a model calls operators itself that are written out at its capture."""

MEMBERS = "blockbuster_members"
"""The key of a node's metadata under which the operators stand that it replaces."""


def captured_names(node: Node) -> tuple[str, ...]:
    """The names in the captured graph of the operators that a node computes."""
    names: tuple[str, ...] = node.meta.get(MEMBERS, (node.name,))
    return names


@dataclass(frozen=True)
class Composite(ABC):
    """Operators of a graph, the members, whose result one operator of PyTorch's computes."""

    result: Node
    members: tuple[Node, ...]

    least_gain: ClassVar[float] = 0.0
    """The share of the members' time that it must save."""

    @property
    @abstractmethod
    def operator(self) -> torch._ops.OpOverload:
        """The operator that computes the result."""

    @property
    @abstractmethod
    def operands(self) -> tuple[Node | None, ...]:
        """The arrays that it reads."""

    @property
    @abstractmethod
    def form(self) -> tuple[object, ...]:
        """All but the operands that its time depends on."""

    @abstractmethod
    def computed(self, calling: Calling, *operands: Any) -> Any:
        """The result, of the operands, by calls of operators."""

    def prepared(self, *operands: Any) -> tuple[Any, ...]:
        """The operands as arrays that are given in each call: constants are made before."""
        return operands

    def placed(self, graph: Graph, *operands: Any) -> tuple[Any, ...]:
        """The operands as nodes of a graph that are given in each call."""
        return operands

    def run(self, *operands: Any) -> Any:
        """The result, of arrays."""
        return self.computed(_called, *operands)

    def fake(self) -> torch.Tensor | None:
        """An array of the form of the result, or None if PyTorch refuses such operands."""
        given = [None if n is None else tensor_of(n) for n in self.operands]

        def made() -> torch.Tensor | None:
            with fake_mode_of(tensor_of(self.result)):
                try:
                    found = self.run(*given)
                except (RuntimeError, ValueError):
                    return None
            assert isinstance(found, torch.Tensor)
            return found

        return known_form((type(self), self.operator, self.form), given, made)

    def absorbed(self) -> set[Node]:
        """The nodes in whose place its operator comes: members, and those that they alone read."""
        kept = {n for n in self.operands if n is not None}
        found, stack = {self.result}, [*self.result.all_input_nodes]
        while stack:
            node = stack.pop()
            is_read = node in kept or not found.issuperset(node.users)
            if node.op == "call_function" and not is_read and node not in found:
                found.add(node)
                stack.extend(node.all_input_nodes)
        return found

    def collapse(self, graph: Graph, replaced: dict[Node, Node]) -> list[Node]:
        """Puts PyTorch's operator in place of the members, and returns the nodes that are new.

        `replaced` has the nodes that stand for results of composites collapsed before.
        """
        nodes: list[Node] = []

        def calling(target: Any, arguments: tuple[Any, ...], **options: Any) -> Node:
            nodes.append(inserted(graph, target, arguments, self.result, options))
            return nodes[-1]

        given = tuple(n if n is None else replaced.get(n, n) for n in self.operands)
        given = self.placed(graph, *given)
        with graph.inserting_before(self.result):
            whole = self.computed(calling, *given)
        self.result.replace_all_uses_with(whole)
        replaced[self.result] = whole
        _erase_unread(graph, self.result)
        for n in nodes:
            n.meta.pop(MEMBERS, None)  # those of a result that is a composite itself
        made = next(n for n in nodes if n.target is self.operator)
        made.meta[MEMBERS] = tuple(name for n in self.members for name in captured_names(n))
        return nodes


def _called(target: Any, arguments: tuple[Any, ...], **options: Any) -> Any:
    return target(*arguments, **options)


def first_of(calling: Calling, several: Any) -> Any:
    """The first of several results."""
    return calling(operator.getitem, (several, 0))


def written_out(operators: Iterable[Any], called: Called) -> int:
    """The number of composites, by their operators, that a model writes out and does not call."""
    return sum(max(0, n - called.get(op, 0)) for op, n in Counter(operators).items())


def has_form_of(made: torch.Tensor, node: Node) -> bool:
    """True if an array has the shape and dtype of a node's result."""
    shown = tensor_of(node)
    same = [*map(as_size, made.shape)] == [*map(as_size, shown.shape)]
    return same and made.dtype == shown.dtype


def gives_result(found: Composite) -> bool:
    """True if the one operator gives the result in its shape, dtype and strides."""
    made = found.fake()
    if made is None or not has_form_of(made, found.result):
        return False
    strides = [[*map(as_size, x.stride())] for x in (made, tensor_of(found.result))]
    return strides[0] == strides[1]


def _erase_unread(graph: Graph, node: Node) -> None:
    """Removes a node that nothing reads, and what it alone read."""
    stack = [node]
    while stack:
        n = stack.pop()
        if n.op == "call_function" and not n.users and not n._erased:
            stack.extend(n.all_input_nodes)
            graph.erase_node(n)
