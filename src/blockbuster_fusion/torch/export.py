"""`bb.from_torch`: a program that torch.export has captured, compiled."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.runtime.tensors import check_untraced
from blockbuster_fusion.torch.backend import (
    decompositions,
    options_from,
    warn_of_lost_gradients,
)
from blockbuster_fusion.torch.capture.attention import attention
from blockbuster_fusion.torch.capture.nodes import tensors_of
from blockbuster_fusion.torch.capture.symbolic import as_size
from blockbuster_fusion.torch.compile_graph import compile_graph
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.rivals.weighing import Weighing

if TYPE_CHECKING:
    from blockbuster_fusion.torch.explain import Explanation

_FUNCTION = "the exported program"
WRITTEN = (
    OutputKind.BUFFER_MUTATION,
    OutputKind.PARAMETER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
)
"""The outputs of a program beside its results: inputs and buffers that it has changed."""
MOST_SHAPES = 256
"""The number of shapes that a program remembers to have checked."""


class Domain:
    """The inputs that a program was exported for."""

    def __init__(self, program: ExportedProgram, graph: CompiledGraph) -> None:
        specs = program.graph_signature.input_specs
        pairs = enumerate(zip(graph.inputs, specs, strict=True))
        asked = [(i, node, s.arg) for i, (node, s) in pairs if s.kind is InputKind.USER_INPUT]
        self.slots = [i for i, _, _ in asked]
        self.constants = [(i, arg) for i, _, arg in asked if isinstance(arg, ConstantArgument)]
        self.tensors = [(i, node.name, x.shape) for i, node, _ in asked for x in tensors_of(node)]
        self.kinds = [
            (i, node.name, x.dtype, x.device) for i, node, _ in asked for x in tensors_of(node)
        ]
        self.plan = graph.plan
        numbers = (node.meta.get("val") for _, node, _ in asked)
        extents: list[Any] = [x for x in numbers if isinstance(x, torch.SymInt)]
        extents += [n for _, _, shape in self.tensors for n in shape if not isinstance(n, int)]
        self.symbols = {s for n in extents for s in n.node.expr.free_symbols}
        self.ranges = {s: r for s, r in program.range_constraints.items() if s in self.symbols}
        mode = detect_fake_mode([node.meta.get("val") for node in graph.analysis.inputs])
        shapes = None if mode is None else mode.shape_env
        guards = [] if shapes is None else [shapes.replace(g.expr) for g in shapes.guards]
        self.guards = [g for g in guards if g.free_symbols and g.free_symbols <= self.symbols]
        """The conditions on sizes under which the program was captured."""
        self.known = RecentlyUsed[bool](MOST_SHAPES)

    def check(self, inputs: Sequence[Any]) -> None:
        """Raises WrongKind if the program was not exported for these inputs."""
        for slot, argument in self.constants:
            if argument.value != inputs[slot] and repr(argument.value) != repr(inputs[slot]):
                raise WrongKind(
                    function=_FUNCTION,
                    wanted=f"{argument.name} = {argument.value!r}, as it was exported with",
                    given=repr(inputs[slot]),
                    remedy="export it again for another value",
                )
        given = [inputs[slot] for slot in self.slots]
        for slot, name, dtype, device in self.kinds:
            x = inputs[slot]
            if not isinstance(x, torch.Tensor) or x.dtype is not dtype or x.device != device:
                raise WrongKind(
                    function=_FUNCTION,
                    wanted=f"{name} as a tensor of {dtype} on {device}",
                    given=_kind(x),
                    remedy="convert it, or export the model for what it is called with",
                )
        seen = tuple(x.shape if isinstance(x, torch.Tensor) else x for x in given)
        if self.known.get(seen):
            return
        reason = self.misfit(inputs)
        if reason is not None:
            shapes = (f"{name} ({', '.join(map(str, x))})" for _, name, x in self.tensors)
            raise WrongKind(
                function=_FUNCTION,
                wanted=f"{', '.join(shapes)}{reason}",
                given=", ".join(_shown(x) for x in given),
                remedy="export it with dynamic_shapes that allow it",
            )
        self.known.put(seen, True)

    def misfit(self, inputs: Sequence[Any]) -> str | None:
        """The condition that the sizes of inputs violate; empty if a shape is wrong, or None."""
        for slot, _, shape in self.tensors:
            x = inputs[slot]
            if not isinstance(x, torch.Tensor) or x.dim() != len(shape):
                return ""
        sources = [(s.symbol, inputs[s.slot], s.dim) for s in self.plan.symbols]
        sizes = {name: x if dim is None else x.shape[dim] for name, x, dim in sources}

        def length(size: Size) -> int:
            factors = (self.plan.evaluate(symbol, sizes) for symbol in size.symbols)
            return math.prod(factors, start=size.number)

        for slot, _, shape in self.tensors:
            if [*inputs[slot].shape] != [length(as_size(n)) for n in shape]:
                return ""
        values = {symbol: self.plan.evaluate(str(symbol), sizes) for symbol in self.symbols}
        for symbol, allowed in self.ranges.items():
            if not allowed.lower <= values[symbol] <= allowed.upper:
                return f" with {symbol} from {allowed.lower} to {allowed.upper}"
        for guard in self.guards:
            if not guard.subs(values):
                return f" with {guard}"
        return None


def _kind(x: object) -> str:
    if isinstance(x, torch.Tensor):
        return f"one of {x.dtype} on {x.device}"
    return type(x).__name__


def _shown(x: object) -> str:
    return str(tuple(x.shape)) if isinstance(x, torch.Tensor) else repr(x)


class ExportedModel:
    """A compiled program: it is called as the exported model was, with the same results."""

    def __init__(self, program: ExportedProgram, graph: CompiledGraph, options: Options) -> None:
        self.program, self.graph, self.options = program, graph, options
        self.held = [self._held(spec) for spec in program.graph_signature.input_specs]
        self.domain = Domain(program, graph)
        self.run = graph.call(lambda plan: plan)
        self.has_warned = False

    def _held(self, spec: Any) -> Any:
        """The program's own value of an input: a weight, a buffer or a constant."""
        if spec.kind is InputKind.USER_INPUT:
            return None
        if spec.kind is InputKind.CONSTANT_TENSOR:
            return self.program.constants[spec.target]
        if spec.kind is InputKind.BUFFER and not spec.persistent:
            return self.program.constants[spec.target]
        return self.program.state_dict[spec.target]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The outputs, structured as the model's own."""
        signature = self.program.graph_signature
        given = iter(self._flat(arguments, named))
        inputs = [
            next(given) if spec.kind is InputKind.USER_INPUT else held
            for spec, held in zip(signature.input_specs, self.held, strict=True)
        ]
        check_untraced()
        self.domain.check(inputs)
        if torch.is_grad_enabled() and not self.has_warned:
            self.has_warned = warn_of_lost_gradients((arguments, named))
        with torch.no_grad():
            made = self.run(*inputs)
        outputs = zip(signature.output_specs, made, strict=True)
        results = [x for spec, x in outputs if spec.kind is OutputKind.USER_OUTPUT]
        return pytree.tree_unflatten(results, self.program.call_spec.out_spec)

    def renewed(self) -> "ExportedModel":
        """The same model, run by the plan that its graph has now."""
        return ExportedModel(self.program, self.graph, self.options)

    @property
    def explanation(self) -> "Explanation":
        """The explanation of the program."""
        from blockbuster_fusion.torch.explain import Explanation, model_name

        return Explanation((self.graph,), options=self.options, name=model_name(self.program))

    def _flat(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """The arguments in the order of the program's inputs, or WrongKind."""
        wanted = self.program.call_spec.in_spec
        names = [*wanted.child(1).context] if wanted.child(1).num_children else []
        if set(names) == set(named):
            named = {name: named[name] for name in names}
        flat, spec = pytree.tree_flatten((arguments, named))
        if spec != wanted:
            raise WrongKind(
                function=_FUNCTION,
                wanted=f"arguments as it was exported with: {wanted}",
                given=str(spec),
                remedy="call it as you called torch.export.export",
            )
        return flat


def from_torch(program: ExportedProgram, **options: Any) -> ExportedModel:
    """An exported program, fused and compiled; options are those of the torch.compile backend."""
    return compiled_program(program, options, Weighing())


def compiled_program(
    program: ExportedProgram, options: Mapping[str, Any], weighing: Weighing
) -> ExportedModel:
    """An exported program, fused and compiled on some terms."""
    if not isinstance(program, ExportedProgram):
        raise WrongKind(
            function="from_torch",
            wanted="what torch.export.export gives",
            given=type(program).__name__,
            remedy="export the model, or use torch.compile(model, backend='blockbuster')",
        )
    table = decompositions()
    table[torch.ops.aten.scaled_dot_product_attention.default] = attention
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch copies what it deprecates itself
        simple = program.run_decompositions(table)
    _write_back(simple)
    weights = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    specs = simple.graph_signature.input_specs
    static = [i for i, spec in enumerate(specs) if spec.kind in weights]
    chosen = options_from(None, options)
    graph = compile_graph(simple.graph_module, static, chosen, weighing)
    made = ExportedModel(simple, graph, chosen)
    graph.settle(is_as_captured=False)
    return made


def _write_back(program: ExportedProgram) -> None:
    """Makes the graph write the inputs and buffers that it changes, instead of returning them."""
    graph, signature = program.graph_module.graph, program.graph_signature
    given = graph.find_nodes(op="placeholder")
    held = {s.target: n for s, n in zip(signature.input_specs, given, strict=True) if s.target}
    named = {node.name: node for node in given}
    output = graph.output_node()
    results = [*output.args[0]]
    for i, spec in enumerate(signature.output_specs):
        if spec.kind in WRITTEN:
            is_given = spec.kind is OutputKind.USER_INPUT_MUTATION
            target = (named if is_given else held)[spec.target]
            with graph.inserting_before(output):
                copy = graph.call_function(torch.ops.aten.copy_.default, (target, results[i]))
            copy.meta["val"] = target.meta["val"]
            results[i] = None
    output.args = (tuple(results),)
