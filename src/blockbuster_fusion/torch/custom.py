"""`bb.custom_operator`: a user's operator, with a definition of what it computes.

The definition is captured as models are, by torch.export, with a symbol for each size of an array.
Sizes that it needs as numbers, and lengths of 1, are those of the example. The operator is run once
on the example, and has to be as near to the definition in float64 as the definition itself is.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch._subclasses import FakeTensorMode
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental import _config as shapes
from torch.utils import _pytree as pytree

from blockbuster_fusion.errors import BadOperator
from blockbuster_fusion.torch.backend import decompositions
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.attention import attention
from blockbuster_fusion.torch.capture.complex_pairs import pair_complex
from blockbuster_fusion.torch.capture.nodes import FLOATS, tensor_of, tensors_of
from blockbuster_fusion.torch.capture.results import correct_strides, kept_whole
from blockbuster_fusion.torch.capture.simplify import simplify
from blockbuster_fusion.torch.rivals.custom import CustomOperator, Place
from blockbuster_fusion.torch.rivals.patterns import Pattern
from blockbuster_fusion.torch.rivals.reasons import sentence
from blockbuster_fusion.torch.slices import move_slices

aten = torch.ops.aten
Definition = Callable[..., torch.Tensor]
TOLERANCE = 2.0
"""The factor by which the operator's error may exceed the definition's."""


def custom_operator(operator: Any, definition: Definition, *inputs: Any) -> CustomOperator:
    """An operator that may run what its definition computes, or BadOperator.

    Arrays among the inputs of both are examples; everything else is a constant.
    """
    target = _overload(operator)
    _check_schema(target)
    if not any(isinstance(x, torch.Tensor) for x in inputs):
        raise _bad(target, "needs the inputs of a call as an example, with an array among them")
    if any(isinstance(x, list | tuple | dict) for x in inputs):
        raise _bad(target, "takes arrays, numbers and strings; lists are not supported")
    with torch.no_grad():
        program = _captured(target, definition, inputs)
        _check_definition(target, program)
        module = program.graph_module
        correct_strides(module)
        simplify(module)
        _check_results(target, definition, module, inputs)
    return CustomOperator(target, _pattern(target, module, inputs), _arguments(inputs))


def _bad(target: object, problem: str) -> BadOperator:
    return BadOperator(operator=str(target), problem=problem)


def _overload(operator: Any) -> torch._ops.OpOverload:
    """The operator itself: a packet, and what torch.library gives, have one."""
    if isinstance(operator, CustomOpDef):
        operator = operator._opoverload
    if isinstance(operator, torch._ops.OpOverloadPacket):
        names = operator.overloads()  # type: ignore[no-untyped-call]
        if len(names) != 1:
            known = ", ".join(names)
            raise _bad(operator, f"has several overloads; give one of {known}")
        operator = getattr(operator, names[0])
    if not isinstance(operator, torch._ops.OpOverload):
        raise _bad(operator, "is no operator; register it by torch.library.custom_op")
    return operator


def _check_schema(target: torch._ops.OpOverload) -> None:
    """Refuses an operator that may do more than compute one new array."""
    schema = target._schema
    written = [a.name for a in schema.arguments if a.alias_info is not None]
    if schema.is_mutable:
        raise _bad(target, f"writes to {', '.join(written)}; only operators without effects are")
    if written or any(x.alias_info is not None for x in schema.returns):
        raise _bad(target, "gives a view of its operands, and not a new array")
    if [str(x.type) for x in schema.returns] != ["Tensor"]:
        raise _bad(target, f"gives {len(schema.returns)} results, and not one array")
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise _bad(target, "is random, so that it cannot stand for a definition")


# ---------------------------------------------------------------- the definition


def _captured(target: object, definition: Definition, inputs: Sequence[Any]) -> ExportedProgram:
    """The definition as operators, with a symbol for each size."""

    class Defined(torch.nn.Module):
        def forward(self, *given: Any) -> torch.Tensor:
            return definition(*given)

    sizes = tuple(
        {axis: Dim.AUTO for axis, n in enumerate(x.shape) if n > 1}
        if isinstance(x, torch.Tensor)
        else None
        for x in inputs
    )
    table = decompositions()
    table[aten.scaled_dot_product_attention.default] = attention
    try:
        with warnings.catch_warnings(), shapes.patch(use_duck_shape=False):  # type: ignore[attr-defined]
            warnings.simplefilter("ignore", FutureWarning)  # torch copies what it deprecates itself
            made = export(Defined(), tuple(inputs), dynamic_shapes={"given": sizes})
            simple: ExportedProgram = made.run_decompositions(table)
            return simple
    except Exception as error:
        reason = f"its definition cannot be captured: {type(error).__name__}: {sentence(error)}"
        raise _bad(target, reason) from error


def _check_definition(target: object, program: ExportedProgram) -> None:
    """Refuses a definition that is no function of its inputs alone, with one array as result."""
    signature = program.graph_signature
    if any(x.kind is not InputKind.USER_INPUT for x in signature.input_specs):
        raise _bad(target, "its definition reads arrays that are no arguments of it")
    if [x.kind for x in signature.output_specs] != [OutputKind.USER_OUTPUT]:
        raise _bad(target, "its definition has to give one array, and to write to none")
    graph = program.graph_module.graph
    unread = [n.name for n in graph.find_nodes(op="placeholder") if tensors_of(n) and not n.users]
    if unread:
        numbers = ", ".join(name.rpartition("_")[2] for name in unread)
        raise _bad(target, f"its definition does not read the arrays {numbers} of its arguments")
    for node in graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            raise _bad(target, f"its definition is random: {node.target}")
    (result,) = graph.output_node().args[0]
    if not isinstance(result, Node) or result.op != "call_function" or not tensors_of(result):
        raise _bad(target, "its definition computes nothing")


def _pattern(target: object, module: GraphModule, inputs: Sequence[Any]) -> Pattern:
    """The definition in the form that models have when what runs them is chosen."""
    pair_complex(module)
    given = module.graph.find_nodes(op="placeholder")
    device = next(tensor_of(n).device for n in given if tensors_of(n))
    analysis = Analysis(module, frozenset())
    analysis = move_slices(analysis, kept_whole(module), splits=device.type != "cuda")
    operands = tuple(n for n in analysis.inputs if tensors_of(n))
    (result,) = analysis.results
    mode = getattr(tensor_of(result), "fake_mode", None)
    sizes = None if mode is None else mode.shape_env
    guards = [] if sizes is None else [sizes.replace(x.expr) for x in sizes.guards]
    arrays = [x for x in inputs if isinstance(x, torch.Tensor)]
    if len(operands) != len(arrays):
        raise _bad(target, "its definition computes with complex numbers, which is not supported")
    return Pattern(
        operands,
        result,
        tuple(x for x in guards if x.free_symbols),
        tuple(x.is_contiguous() for x in arrays),
    )


def _arguments(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of a call, with a place for each array."""
    found: list[Any] = []
    for x in inputs:
        count = sum(isinstance(y, Place) for y in found)
        found.append(Place(count) if isinstance(x, torch.Tensor) else x)
    return tuple(found)


# ---------------------------------------------------------------- results


def _check_results(
    target: torch._ops.OpOverload,
    definition: Definition,
    module: GraphModule,
    inputs: Sequence[Any],
) -> None:
    """Refuses an operator whose result on the example is not the definition's."""
    wanted, found = definition(*inputs), target(*inputs)
    _check_form(target, "result", wanted, found)
    try:
        with FakeTensorMode() as mode:
            fake = target(*pytree.tree_map_only(torch.Tensor, mode.from_tensor, inputs))
    except Exception as error:
        reason = f"needs a fake implementation (register_fake): {sentence(error)}"
        raise _bad(target, reason) from error
    _check_form(target, "fake result", wanted, fake)
    exact = _Exact(module).run(*_widened(inputs))[0]
    if not wanted.dtype.is_floating_point:
        if not torch.equal(wanted, found):
            raise _bad(target, "gives other numbers than its definition on the example")
        return
    own, off = (_distance(x, exact) for x in (wanted, found))
    if own == math.inf:
        raise _bad(target, "its definition overflows on the example; give one with smaller numbers")
    least = torch.finfo(wanted.dtype).eps * _largest(exact)
    if off > TOLERANCE * max(own, least):
        raise _bad(
            target,
            "gives other numbers than its definition on the example: it is off by up to "
            f"{off:.3g} from the definition in float64, which is itself off by {own:.3g}",
        )


def _check_form(target: object, what: str, wanted: torch.Tensor, found: torch.Tensor) -> None:
    forms = [
        f"{x.dtype} {tuple(x.shape)} with strides {x.stride()} on {x.device}"
        for x in (wanted, found)
    ]
    if forms[0] != forms[1]:
        raise _bad(target, f"its {what} is {forms[1]}, and its definition's {forms[0]}")


def _distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error; infinite unless infinities and NaNs are where they should be."""
    wide, is_odd = found.double(), ~exact.isfinite()
    if not torch.equal(~wide.isfinite(), is_odd):
        return math.inf
    if not torch.equal(*(x[is_odd].nan_to_num(nan=0.0) for x in (wide, exact))):
        return math.inf
    return _largest(wide - exact)


def _largest(x: torch.Tensor) -> float:
    """The largest finite magnitude; 0 if there is none."""
    known = x[x.isfinite()].abs()
    return float(known.amax()) if known.numel() else 0.0


def _widened(inputs: Sequence[Any]) -> list[Any]:
    is_wide = (isinstance(x, torch.Tensor) and x.dtype in FLOATS for x in inputs)
    return [x.double() if wide else x for x, wide in zip(inputs, is_wide, strict=True)]


class _Exact(Interpreter):
    """Runs a definition with all its floats in float64."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(torch.dtype, _wide, (args, kwargs))
        if target in (aten._softmax.default, aten._log_softmax.default):
            args = (*args[:2], False)
        return super().call_function(target, args, kwargs)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype in FLOATS else dtype
