"""Counts the bytes that a captured model moves, by the operators that run together.

Each group of operators reads every array of others once, and stores what others read: these are its
*touched* bytes (nest/analysis/traffic.py). Groupings differ in what has to be stored:

- *unfused*: every operator is a group.
- *greedy*: groups of greedy elementwise fusion, as `greedy_groups` has them.
- *kernels*: the kernels of our plan, if PyTorch runs only what no kernel can.
- *default*: our plan by default, in which PyTorch runs what it is faster at.
- *bound*: all operators are one group. No plan moves less: inputs, weights and results, each once.

Views are free everywhere, and so are copies that only change the order of an array. An operator
reads of a table as many elements as it looks up. In the first two groupings, attention that a model
calls as one operator is one, if PyTorch has a kernel for it; our plans see it written out, and call
it again where that is faster.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule, Node

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.compiler import first_with_kernels
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.nest.analysis.traffic import traffic_of
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.backend import _called, _static_inputs, decompositions
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.attention import restore_attention
from blockbuster_fusion.torch.capture.nodes import tensors_of
from blockbuster_fusion.torch.capture.operators import concatenated
from blockbuster_fusion.torch.capture.simplify import simplify
from blockbuster_fusion.torch.capture.sizes import captured_length
from blockbuster_fusion.torch.compile_graph import _copied, _WeighedGraph
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.rivals.composites import Called
from blockbuster_fusion.torch.rivals.least import boundary_bytes, bytes_of
from blockbuster_fusion.torch.rivals.weighing import Weighing
from blockbuster_fusion.torch.to_array_program import Unexpressed

PLANS = {"kernels": "never", "default": "auto"}
"""The option `library` of our plans."""
FUSED = (Kind.POINTWISE, Kind.REDUCTION)
"""The operators that greedy fusion puts with those before them."""


@dataclass
class Counted:
    """The bytes of a model by groupings, and the groups of each."""

    bytes: dict[str, int]
    groups: dict[str, int]

    def add(self, name: str, sizes: Sequence[int]) -> None:
        self.bytes[name] = self.bytes.get(name, 0) + sum(sizes)
        self.groups[name] = self.groups.get(name, 0) + sum(size > 0 for size in sizes)


def counted_model(
    model: Callable[..., Any], inputs: Mapping[str, Any], plans: Iterable[str]
) -> Counted:
    """The bytes of a call of a model, by all groupings; of our plans, only those that are named."""
    found = Counted({}, {})
    for graph in captured(model, inputs, writes_out=False):
        analysis = graph.analysis()
        length = captured_length(analysis)
        operators = all_operators(analysis)
        greedy = greedy_groups(analysis, operators)
        found.add("unfused", [boundary_bytes(analysis, [n], length) for n in operators])
        found.add("greedy", [group_bytes(analysis, group, length) for group in greedy])
        found.add("bound", [boundary_bytes(analysis, operators, length)])
    for graph in captured(model, inputs, writes_out=True):
        for plan in plans:
            found.add(plan, step_bytes(graph.parts(PLANS[plan])))
    return found


@dataclass(frozen=True)
class Captured:
    """A graph of a call, with the numbers of its weights and the composites that it calls."""

    module: GraphModule
    static: list[int]
    called: Called

    def analysis(self) -> Analysis:
        """The operators as they were captured, but for those that compute nothing."""
        module = _copied(self.module)
        simplify(module)
        given = module.graph.find_nodes(op="placeholder")
        return Analysis(module, frozenset(given[i] for i in self.static if i < len(given)))

    def parts(self, library: str) -> PartCompiler:
        """The parts of the graph, with what runs each; nothing is compiled."""
        options, weighing = Options(library=library, time_model=False), Weighing(called=self.called)
        return _WeighedGraph(_copied(self.module), self.static, options, weighing).parts


def captured(
    model: Callable[..., Any], inputs: Mapping[str, Any], *, writes_out: bool
) -> list[Captured]:
    """The graphs of a call; attention is one operator in them, or written out."""
    graphs: list[Captured] = []

    def backend(module: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        called = _called(module) if writes_out else {}
        table = decompositions()
        if not writes_out:
            table = {op: x for op, x in table.items() if "scaled_dot_product" not in str(op)}

        def keep(graph: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            graphs.append(Captured(_copied(graph), _static_inputs(), called))
            return graph.forward

        compiler = aot_autograd(
            fw_compiler=keep,
            inference_compiler=keep,
            decompositions=table,
            keep_inference_input_mutations=True,
        )
        try:
            return compiler(module, examples)
        finally:
            if writes_out:
                restore_attention(module)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=backend, dynamic=False)(**inputs)
    return graphs


def all_operators(analysis: Analysis) -> list[Node]:
    """The operators that compute something, in order; those that parts compute anew as well."""
    copies = {*analysis.updates.values()}
    return [
        n
        for n in analysis.nodes
        if tensors_of(n) and n not in copies
        if analysis.kind(n) is not Kind.VIEW and not analysis.is_element(n)
    ]


# ---------------------------------------------------------------- greedy elementwise fusion


def greedy_groups(analysis: Analysis, operators: Sequence[Node]) -> list[list[Node]]:
    """The groups of greedy elementwise fusion, as usual compilers of graphs do by default.

    Operators are visited in order. A pointwise operator joins the group of a pointwise operator
    that it reads, if nothing else reads that, or if it reads no other computed array. A reduction
    joins the pointwise operators that it alone reads; it ends its group, so nothing joins it. What
    has no operand but the shape is computed in each group that reads it. Products, operators that
    no table knows, and tables of lookups stand alone. Nothing joins if groups then wait for each
    other.
    """
    groups = {n: [n] for n in operators}
    sources = {n: _sources(analysis, n, groups) for n in operators}
    readers: dict[Node, set[Node]] = {n: set() for n in operators}
    for n in operators:
        for source in sources[n]:
            readers[source].add(n)
    results = {analysis.owner(analysis.base(n)) for n in analysis.outputs}
    for n in operators:
        if analysis.kind(n) not in FUSED:
            continue
        in_memory = {analysis.base(x) for x in analysis.reads_in_memory(n)}
        made = [x for x in sources[n] if analysis.kind(x) is not Kind.GENERATOR]
        for source in made:
            if analysis.kind(source) is not Kind.POINTWISE or source in in_memory:
                continue
            is_last = readers[source] == {n} and source not in results
            is_first = analysis.kind(n) is Kind.POINTWISE and len(made) == 1
            one, other = groups[source], groups[n]
            if (
                one is not other
                and (is_last or is_first)
                and not _waits(one, other, groups, sources)
            ):
                for x in other:
                    groups[x] = one
                one += other
    found = list({id(group): group for group in groups.values()}.values())
    return [
        _with_generators(analysis, group, sources)
        for group in found
        if not _is_inlined(analysis, group, results)
    ]


def group_bytes(analysis: Analysis, group: Sequence[Node], length: Length) -> int:
    """The bytes of a group; generators in it are stored by none of the groups that compute them."""
    inside = set(group) if len(group) > 1 else set()
    anew = [n for n in inside if analysis.kind(n) is Kind.GENERATOR]
    stored = [x for n in anew for x in analysis.stored_results(n, inside)]
    return boundary_bytes(analysis, group, length) - sum(bytes_of(x, length) for x in stored)


def _sources(analysis: Analysis, node: Node, known: Mapping[Node, Any]) -> list[Node]:
    """The operators that a node reads, through views."""
    bases = (analysis.owner(analysis.base(x)) for x in node.all_input_nodes)
    return [x for x in dict.fromkeys(bases) if x in known]


def _waits(
    one: Sequence[Node],
    other: Sequence[Node],
    groups: Mapping[Node, list[Node]],
    sources: Mapping[Node, list[Node]],
) -> bool:
    """True if two groups cannot be one: a third waits for one of them, and is waited for."""
    own = {id(one), id(other)}
    stack = [groups[x] for n in (*one, *other) for x in sources[n] if id(groups[x]) not in own]
    seen: set[int] = set()
    while stack:
        group = stack.pop()
        if id(group) in own:
            return True
        if id(group) not in seen:
            seen.add(id(group))
            stack += [groups[x] for n in group for x in sources[n]]
    return False


def _is_inlined(analysis: Analysis, group: Sequence[Node], results: set[Node]) -> bool:
    """True if a group is a generator, which its readers compute."""
    return analysis.kind(group[0]) is Kind.GENERATOR and group[0] not in results


def _with_generators(
    analysis: Analysis, group: Sequence[Node], sources: Mapping[Node, list[Node]]
) -> list[Node]:
    """A group with the generators that it reads, if it computes and does not call a library."""
    if any(analysis.kind(n) not in FUSED for n in group):
        return [*group]
    read = [x for n in group for x in sources[n] if analysis.kind(x) is Kind.GENERATOR]
    return [*dict.fromkeys([*read, *group])]


# ---------------------------------------------------------------- our plan


def step_bytes(parts: PartCompiler) -> list[int]:
    """The bytes of each step of our plan: of a kernel, or of an operator that PyTorch runs."""
    analysis, length = parts.analysis, parts.expected.captured
    copies = {*analysis.updates.values()}
    found: list[int] = []
    in_kernels: set[Node] = set()
    joins: list[Node] = []
    for nodes in parts.parts():
        if nodes[0] in copies:
            continue
        if analysis.is_join(nodes[0]):
            joins += nodes
        elif analysis.kind(nodes[0]) is Kind.MISC:
            found.append(boundary_bytes(analysis, nodes, length))
        else:
            for some, sizes in kernels_of(parts, nodes):
                in_kernels.update(some if sizes else ())
                found += sizes or [boundary_bytes(analysis, some, length)]
    for node in joins:  # a kernel stores its piece in place; others are copied
        pieces, _ = concatenated(node)
        others = [p for p in pieces if analysis.owner(analysis.base(p)) not in in_kernels]
        found.append(2 * sum(bytes_of(p, length) for p in others))
    return found


def kernels_of(parts: PartCompiler, nodes: list[Node]) -> list[tuple[list[Node], list[int]]]:
    """The pieces of a part, each with the bytes of its kernels; none where PyTorch runs it."""
    found: list[tuple[list[Node], list[int]]] = []
    stack = [[*nodes]]
    while stack:
        piece = stack.pop()
        try:
            found.append((piece, kernel_bytes(parts, piece)))
        except Unexpressed as error:
            if len(piece) == 1:
                found.append((piece, []))
            else:
                stack += reversed(parts.cut(piece, error.at))
    return found


def kernel_bytes(parts: PartCompiler, nodes: list[Node]) -> list[int]:
    """The bytes that each kernel of a part touches, as chosen for the sizes of the call."""
    part, target = parts.program(nodes), parts.options.target_of(nodes)
    nest, tiles = first_with_kernels(parts.choices(part, target), lambda choice: choice.scheduled())
    tiling = Tiling(Extents.of_sizes(parts.sizes(part), "the call"), tiles)
    return [traffic_of(launch, tiling).total_touched for launch in nest.launches]
