"""Array programs run by PyTorch's own operators, in any dtype: the reference for exactness."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import ADD, MAX, MIN
from blockbuster_fusion.ir.expr import evaluate
from blockbuster_fusion.ir.types import DType

DTYPES = {
    DType.float64: torch.float64,
    DType.float32: torch.float32,
    DType.float16: torch.float16,
    DType.bfloat16: torch.bfloat16,
    DType.int64: torch.int64,
    DType.int32: torch.int32,
    DType.bool_: torch.bool,
}


class Reference:
    """One run of a program: its values with the names of their axes."""

    def __init__(self, program: ArrayProgram, dtype: torch.dtype) -> None:
        self.program, self.dtype = program, dtype
        self.sizes: dict[object, int] = {}

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        values: list[tuple[torch.Tensor, tuple[Axis, ...]]] = []
        for given in self.program.inputs:
            x = torch.from_numpy(np.asarray(inputs[given.name]))
            x = x.to(self.dtype) if x.is_floating_point() else x
            for axis, length in zip(given.type.axes, x.shape, strict=True):
                self.sizes[axis.extent] = length
            values.append((x, given.type.axes))
        for operator in self.program.operators:
            operands = [values[v] for v in operator.operands]
            axes = operator.type.axes
            made = self.apply(operator.name, operands, dict(operator.attributes), axes)
            values.append((made, axes))
        return {
            out.name: _laid_out(*values[out.value], out.axes).to(torch.float64).numpy()
            for out in self.program.outputs
        }

    def size(self, axis: Axis) -> int:
        return axis.extent if isinstance(axis.extent, int) else self.sizes[axis.extent]

    def apply(
        self,
        name: str,
        operands: Sequence[tuple[torch.Tensor, tuple[Axis, ...]]],
        attributes: Mapping[str, Any],
        axes: tuple[Axis, ...],
    ) -> torch.Tensor:
        if name == "elementwise":
            arguments = [_laid_out(x, own, axes) for x, own in operands]
            return self.elementwise(attributes["expr"], arguments, axes)
        if name == "matmul":
            letters = {a: chr(97 + i) for i, a in enumerate({b: 0 for _, o in operands for b in o})}
            words = ["".join(letters[a] for a in own) for own in (operands[0][1], operands[1][1], axes)]
            return torch.einsum(f"{words[0]},{words[1]}->{words[2]}", operands[0][0], operands[1][0])
        if name == "index":
            return torch.arange(self.size(attributes["axis"]))
        x, own = operands[0]
        if name == "rename":
            return x
        if name == "mean":
            dims = [own.index(a) for a in attributes["axes"]]
            return x.mean(dims) if dims else x
        at = own.index(attributes["axis"])
        if name == "reduce":
            combiner = attributes["combiner"]
            made = {ADD: torch.sum, MAX: torch.amax, MIN: torch.amin}[combiner](x, at)
        elif name in ("softmax", "log_softmax"):
            made = getattr(torch, name)(x, at)
        else:
            made = self.norm(name, x.movedim(at, -1), [p for p, _ in operands[1:]], attributes)
            return _laid_out(made, (*(a for a in own if a is not own[at]), own[at]), axes)
        return made

    def norm(
        self, name: str, x: torch.Tensor, parameters: list[torch.Tensor], attributes: Mapping[str, Any]
    ) -> torch.Tensor:
        shape, eps = x.shape[-1:], attributes["eps"]
        if name == "rmsnorm":
            return functional.rms_norm(x, shape, *parameters, eps=eps)
        weight = parameters[0] if attributes["weight"] else None
        bias = parameters[-1] if attributes["bias"] else None
        return functional.layer_norm(x, shape, weight, bias, eps)

    def elementwise(self, expr: Any, arguments: list[torch.Tensor], axes: tuple[Axis, ...]) -> torch.Tensor:
        made = _torch_expr(expr, arguments, self.size, self.dtype)
        return made.expand([self.size(a) for a in axes])


def _laid_out(x: torch.Tensor, own: tuple[Axis, ...], axes: Sequence[Axis]) -> torch.Tensor:
    """`x` with the axes in another order; where it lacks one, of length 1."""
    kept = [a for a in axes if a in own]
    x = x.permute([own.index(a) for a in kept])
    return x[tuple(slice(None) if a in own else None for a in axes)]


def _torch_expr(expr: Any, arguments: list[torch.Tensor], size: Any, dtype: torch.dtype) -> torch.Tensor:
    from blockbuster_fusion.ir.expr import postorder

    binary = {
        "add": torch.add, "sub": torch.subtract, "mul": torch.multiply, "div": torch.true_divide,
        "pow": torch.pow, "maximum": torch.maximum, "minimum": torch.minimum, "lt": torch.lt,
        "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne,
        "and_": torch.logical_and, "or_": torch.logical_or, "mod": torch.remainder,
        "floordiv": torch.floor_divide, "arctan2": torch.arctan2,
    }
    made: dict[Any, Any] = {}
    for node in postorder(expr):
        args = [made[a] for a in node.args]
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if node.op == "arg":
            made[node] = arguments[node.value]
        elif node.op == "const":
            made[node] = node.value
        elif node.op == "size":
            made[node] = size(node.value)
        elif node.op == "cast":
            target = DTYPES[node.value]
            made[node] = args[0].to(dtype if target.is_floating_point else target)
        elif not tensors:
            made[node] = float(evaluate(node, [], size, lambda x, d: x))
        elif node.op == "where":
            made[node] = torch.where(*args)
        elif node.op in ("maximum", "minimum"):
            pair = [a if isinstance(a, torch.Tensor) else torch.tensor(a, dtype=tensors[0].dtype) for a in args]
            made[node] = binary[node.op](*pair)
        elif node.op in binary:
            if not isinstance(args[0], torch.Tensor) and node.op not in ("add", "mul", "pow"):
                args[0] = torch.tensor(args[0], dtype=tensors[0].dtype)
            made[node] = binary[node.op](*args)
        else:
            name = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "not_": "logical_not"}.get(node.op, node.op)
            made[node] = getattr(torch, name)(args[0])
    result = made[expr]
    return result if isinstance(result, torch.Tensor) else torch.tensor(result)


def run(program: ArrayProgram, inputs: Mapping[str, np.ndarray], dtype: torch.dtype) -> dict[str, np.ndarray]:
    """The program's outputs in float64 arrays, computed in `dtype` throughout."""
    with torch.no_grad():
        return Reference(program, dtype).run(inputs)
