"""Constants of a compiled graph: how they are computed from weights, and their values."""

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from operator import attrgetter
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.messages import log
from blockbuster_fusion.torch.capture.fakes import fake_result
from blockbuster_fusion.torch.capture.nodes import storages_of, tensor_of, tensor_operands

_address, _version = torch.Tensor.data_ptr, attrgetter("_version")


@dataclass(frozen=True)
class ConstantReport:
    """An array that is computed once."""

    name: str
    operator: str
    """The operator that makes it."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int

    def data(self) -> dict[str, Any]:
        """The report as plain data."""
        return {**asdict(self), "shape": [*self.shape], "dtype": str(self.dtype)}

    def __str__(self) -> str:
        lengths = "×".join(map(str, self.shape)) or "1"
        return f"{self.name}: {self.operator}, {lengths}, {self.dtype}, {self.bytes} bytes"


class Constants:
    """The graph that computes constants from weights, and their latest values.

    They are computed in the first call, and anew in each call for which a weight has changed. The
    graphs for several ranges of sizes share them. Those that no plan reads are not computed.
    """

    def __init__(self, module: GraphModule, weights: Iterable[Node]) -> None:
        """`weights` are the arrays that the graph reads, and never writes."""
        given = module.graph.find_nodes(op="placeholder")
        self.module, self.graph = module, Graph()
        self.spared: list[Node] = []
        """Copies of the operators of the captured graph that calls no longer run."""
        self.slots = {str(n.target): slot for slot, n in enumerate(given)}
        """The inputs of a call, by name."""
        self.weights = {n.target for n in weights}
        self.copies: dict[Node, Node] = {}
        self.made: dict[str, Node] = {}
        """The nodes that compute constants, by the names of the inputs that stand for them."""
        self.known: dict[Hashable, str] = {}
        """The names of constants that are derived from others."""
        self.wanted: set[str] = set()
        """The constants that plans read."""
        self.read: list[int] = []
        """The inputs of a call that these depend on."""
        self.compute: Callable[..., dict[str, Any]] = lambda *_: {}
        """The function that computes them of the inputs of a call."""
        self.values: _Values | None = None
        self.lock = threading.Lock()

    # ---------------------------------------------------------------- when compiling

    def copy(self, node: Node) -> None:
        """Copies a node of the captured graph that is an input, or is computed from weights."""
        self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)

    def taken(self, graph: Graph, node: Node) -> Node:
        """An input of a graph that stands for a constant of it."""
        return self._input(graph, self._named(self.copies[node]))

    def derived(
        self, graph: Graph, source: Node, function: Callable[..., Any], *arguments: Any
    ) -> Node:
        """An input of a graph for a function of a node that `holds`.

        It looks like its source; its layout in memory is the function's.
        """
        views = _views(source)
        steps = tuple((n.target, str(n.args[1:]), str(n.kwargs)) for n in views[:-1])
        key = (views[-1].target, steps, function, arguments)
        if key not in self.known:
            name = str(views[-1].target)
            given = self.made.get(name) or _placeholder(self.graph, name)
            for node in reversed(views[:-1]):
                given = self.graph.create_node(
                    node.op, node.target, (given, *node.args[1:]), node.kwargs
                )
            made = self.graph.call_function(function, (given, *arguments))
            made.meta = {"val": fake_result(torch.empty_like, (source,), source)}
            self.known[key] = self._named(made)
        return self._input(graph, self.known[key])

    def holds(self, node: Node) -> bool:
        """True if a node is a constant input of a graph, or a view of one."""
        found = _views(node)[-1]
        is_made = str(found.target) in self.made
        return found.op == "placeholder" and (is_made or found.target in self.weights)

    def inputs(self, graph: Graph) -> list[Node]:
        """The inputs of a graph that stand for constants."""
        return [n for n in graph.find_nodes(op="placeholder") if str(n.target) in self.made]

    def _named(self, made: Node) -> str:
        name = f"constant_{len(self.made)}"
        self.made[name] = made
        return name

    def _input(self, graph: Graph, name: str) -> Node:
        """The input of a graph with a name: the one that it has, or a new one behind all others."""
        node = _placeholder(graph, name)
        if node is None:
            given = graph.find_nodes(op="placeholder")
            with graph.inserting_after(given[-1] if given else graph._root):
                node = graph.placeholder(name)
            node.meta = {"val": tensor_of(self.made[name])}
        return node

    # ---------------------------------------------------------------- what they cost and spare

    @property
    def spares(self) -> bool:
        """True if calls do without an operator of the captured graph."""
        return bool(self.spared)

    @property
    def reports(self) -> list[ConstantReport]:
        """The constants that plans read."""
        return [_report(name, self.made[name]) for name in self.made if name in self.wanted]

    @property
    def bytes(self) -> int:
        """The memory that constants take, beside the weights."""
        return sum(report.bytes for report in self.reports)

    # ---------------------------------------------------------------- in a call

    def bound(self, run: Callable[..., Any], inputs: Sequence[Node]) -> Callable[..., Any]:
        """A function of the inputs of a call alone; `run` takes all `inputs` of a graph."""
        added = [n for n in inputs if str(n.target) in self.made]
        names = [str(n.target) if n.users else "" for n in added]  # none for what no plan reads
        self._want({name for name in names if name})

        def call(*given: Any) -> Any:
            values = self.latest(given)
            return run(*given, *[values.get(name) for name in names])

        return call

    def _want(self, names: set[str]) -> None:
        """Notes constants that a plan reads."""
        if names <= self.wanted:
            return
        self.wanted |= names
        graph = Graph()
        copies: dict[Node, Node] = {}
        for node in self.graph.nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output({name: copies[self.made[name]] for name in self.wanted})
        graph.eliminate_dead_code()
        given = graph.find_nodes(op="placeholder")
        self.read = [slot for slot, node in enumerate(given) if node.users]
        self.compute = GraphModule(self.module, graph)
        self.release()

    def latest(self, given: Sequence[Any]) -> dict[str, Any]:
        """The constants for the weights among the inputs of a call: those known, or new ones."""
        weights = [given[slot] for slot in self.read]
        known = self.values
        if known is not None and known.are_of(weights):
            return known.values
        with self.lock, torch.no_grad(), torch.inference_mode(False), _disable_current_modes():
            if known is not None:
                log.info("freeze: weights have changed, and their constants are computed anew")
            made = _Values(weights)  # before they are read: a later write is seen in the next call
            made.values = self.compute(*given[: len(self.slots)])
            self.values = made
        return made.values

    def release(self) -> None:
        """Forgets the values, which the next call computes anew."""
        self.values = None


class _Values:
    """The values of constants, and the weights that they are computed from."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self.values: dict[str, Any] = {}
        self.weights = [x.detach() for x in weights]
        """They are held, so that no other weight comes to lie at the same address."""
        self.addresses = [*map(_address, weights)]
        self.counting = [not x.is_inference() for x in weights]
        """False for inference tensors, which have no version counter."""
        if not all(self.counting):
            log.warning(
                "frozen weights were made under inference_mode: writes to them are not seen"
            )
        self.versions = [*map(_version, compress(weights, self.counting))]

    def are_of(self, weights: Sequence[torch.Tensor]) -> bool:
        """True unless a weight lies elsewhere, or was written into, as far as its counter tells."""
        if self.addresses != [*map(_address, weights)]:
            return False
        return self.versions == [*map(_version, compress(weights, self.counting))]


def _views(node: Node) -> list[Node]:
    """A node, and the nodes that it is a view of, one of the other."""
    found = [node]
    while found[-1].op == "call_function":
        sources = tensor_operands(found[-1])
        is_view = len(sources) == 1 and storages_of(sources[0]) == storages_of(found[-1])
        if not is_view or found[-1].args[0] is not sources[0]:
            break
        found.append(sources[0])
    return found


def _placeholder(graph: Graph, name: str) -> Node | None:
    """The input of a graph with a name, if it has one."""
    return next((n for n in graph.find_nodes(op="placeholder") if n.target == name), None)


def _report(name: str, node: Node) -> ConstantReport:
    tensor = tensor_of(node)
    operator = getattr(node.target, "__name__", str(node.target))
    return ConstantReport(
        name, operator, tuple(tensor.shape), tensor.dtype, tensor.untyped_storage().nbytes()
    )
