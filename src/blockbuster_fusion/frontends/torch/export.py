"""`bb.from_torch`: a program that torch.export has captured, compiled."""

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import core_aten_decompositions
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.frontends.torch.attention import attention
from blockbuster_fusion.frontends.torch.backend import options_from
from blockbuster_fusion.frontends.torch.graph import tensors_of
from blockbuster_fusion.frontends.torch.planner import Planned, plan

if TYPE_CHECKING:
    from blockbuster_fusion.frontends.torch.explain import Explanation


class ExportedModel:
    """A compiled program: called as the model that was exported is, it gives what that gives."""

    def __init__(self, program: ExportedProgram, planned: Planned) -> None:
        self.program, self.planned = program, planned
        self.held = [self._held(spec) for spec in program.graph_signature.input_specs]

    def _held(self, spec: Any) -> Any:
        """What the program itself has for an input: a weight, a buffer or a constant."""
        if spec.kind is InputKind.USER_INPUT:
            return None
        if spec.kind is InputKind.CONSTANT_TENSOR:
            return self.program.constants[spec.target]
        if spec.kind is InputKind.BUFFER and not spec.persistent:
            return self.program.constants[spec.target]
        return self.program.state_dict[spec.target]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The outputs, structured as the model's own."""
        specs = self.program.graph_signature.input_specs
        flat = self._flat(arguments, named)
        wanted = [spec.arg for spec in specs if spec.kind is InputKind.USER_INPUT]
        for argument, x in zip(wanted, flat, strict=True):
            if isinstance(argument, ConstantArgument) and argument.value != x:
                raise WrongKind(
                    function="the exported program",
                    wanted=f"{argument.name} = {argument.value!r}, as it was exported with",
                    given=repr(x),
                    remedy="export it again for another value",
                )
        self._check_shapes(flat)
        given = iter(flat)
        inputs = [
            next(given) if spec.kind is InputKind.USER_INPUT else held
            for spec, held in zip(specs, self.held, strict=True)
        ]
        with torch.no_grad():
            made = self.planned.plan(*inputs)
        by_name = {spec.arg.name: x for spec, x in zip(specs, inputs, strict=True)}
        results = []
        for spec, x in zip(self.program.graph_signature.output_specs, made, strict=True):
            if spec.kind is OutputKind.USER_OUTPUT:
                results.append(x)
            elif spec.kind is OutputKind.BUFFER_MUTATION:
                self._buffer(spec.target).copy_(x)
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                by_name[spec.target].copy_(x)
        return pytree.tree_unflatten(results, self.program.call_spec.out_spec)

    def _check_shapes(self, flat: list[Any]) -> None:
        """WrongKind where a tensor has a shape that the program was not exported for."""
        inputs = zip(
            self.planned.analysis.inputs, self.program.graph_signature.input_specs, strict=True
        )
        nodes = [node for node, spec in inputs if spec.kind is InputKind.USER_INPUT]
        lengths: dict[str, int] = {}
        for node, x in zip(nodes, flat, strict=True):
            if not isinstance(x, torch.Tensor):
                continue
            (wanted,) = tensors_of(node) or (x,)
            fits = wanted.dim() == x.dim() and all(
                self._fits(have, want, lengths)
                for have, want in zip(x.shape, wanted.shape, strict=True)
            )
            if not fits:
                raise WrongKind(
                    function="the exported program",
                    wanted=f"{node.name} of the shape {tuple(map(str, wanted.shape))}",
                    given=str(tuple(x.shape)),
                    remedy="export it with dynamic_shapes that allow it",
                )

    def _fits(self, have: int, want: Any, lengths: dict[str, int]) -> bool:
        if isinstance(want, int):
            return have == want
        symbol = want.node.expr
        if not symbol.is_Symbol:
            return True
        allowed = self.program.range_constraints.get(symbol)
        in_range = allowed is None or bool(allowed.lower <= have <= allowed.upper)
        return in_range and lengths.setdefault(str(symbol), have) == have

    @property
    def explanation(self) -> "Explanation":
        """What became of each operator."""
        from blockbuster_fusion.frontends.torch.explain import Explanation

        return Explanation((self.planned,))

    def _buffer(self, name: str) -> torch.Tensor:
        held = self.program.state_dict.get(name)
        found = self.program.constants[name] if held is None else held
        assert isinstance(found, torch.Tensor)
        return found

    def _flat(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """The arguments in the order of the program's inputs, or WrongKind."""
        wanted = self.program.call_spec.in_spec
        names = [*wanted.child(1).context] if wanted.child(1).num_children else []
        if set(names) == set(named):
            named = {name: named[name] for name in names}
        flat, spec = pytree.tree_flatten((arguments, named))
        if spec != wanted:
            raise WrongKind(
                function="the exported program",
                wanted=f"arguments as it was exported with: {wanted}",
                given=str(spec),
                remedy="call it as you called torch.export.export",
            )
        return flat


def from_torch(program: ExportedProgram, **options: Any) -> ExportedModel:
    """An exported program, fused and compiled; options are those of the torch.compile backend."""
    if not isinstance(program, ExportedProgram):
        raise WrongKind(
            function="from_torch",
            wanted="what torch.export.export gives",
            given=type(program).__name__,
            remedy="export the model, or use torch.compile(model, backend='blockbuster')",
        )
    table = dict(core_aten_decompositions())
    table[torch.ops.aten.scaled_dot_product_attention.default] = attention
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch copies what it deprecates itself
        simple = program.run_decompositions(table)
    weights = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    specs = simple.graph_signature.input_specs
    static = [i for i, spec in enumerate(specs) if spec.kind in weights]
    planned = plan(simple.graph_module, static, options_from(None, options))
    return ExportedModel(simple, planned)
