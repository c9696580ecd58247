"""Array programs run by PyTorch's own operators, in any dtype: the reference for exactness."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import ADD, MAX, MIN
from blockbuster_fusion.ir.expr import Expr, evaluate, postorder

SUMMARIES = {ADD: torch.sum, MAX: torch.amax, MIN: torch.amin}

FUNCTIONS = {
    "sub": torch.subtract,
    "mul": torch.multiply,
    "div": torch.true_divide,
    "arcsin": torch.asin,
    "arccos": torch.acos,
    "arctan": torch.atan,
    "and_": torch.logical_and,
    "or_": torch.logical_or,
    "not_": torch.logical_not,
    "mod": torch.remainder,
    "floordiv": torch.floor_divide,
}
"""What PyTorch calls otherwise."""

Named = tuple[torch.Tensor, tuple[Axis, ...]]
"""A tensor with the names of its axes."""


def run(
    program: ArrayProgram, inputs: Mapping[str, np.ndarray], dtype: torch.dtype
) -> dict[str, np.ndarray]:
    """The program's outputs as float64 arrays, computed in `dtype` throughout."""
    with torch.no_grad():
        return Reference(program, dtype).run(inputs)


class Reference:
    """One run of a program."""

    def __init__(self, program: ArrayProgram, dtype: torch.dtype) -> None:
        self.program, self.dtype = program, dtype
        self.sizes: dict[object, int] = {}
        self.largest = 0.0
        """The largest number among the results of the operators in `watched`."""
        self.watched: set[int] = set()

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        values: list[Named] = []
        for given in self.program.inputs:
            x = torch.from_numpy(np.asarray(inputs[given.name]))
            x = x.to(self.dtype) if x.is_floating_point() else x
            for axis, length in zip(given.type.axes, x.shape, strict=True):
                self.sizes[axis.extent] = length
            values.append((x, given.type.axes))
        for number, operator in enumerate(self.program.operators):
            operands = [values[v] for v in operator.operands]
            axes = operator.type.axes
            made = self.apply(operator.name, operands, dict(operator.attributes), axes)
            values.append((made, axes))
            if number in self.watched:
                self.largest = max(
                    [self.largest, *made.abs().nan_to_num().max().reshape(1).tolist()]
                )
        return {
            out.name: laid_out(values[out.value], out.axes).to(torch.float64).numpy()
            for out in self.program.outputs
        }

    def size(self, axis: Axis) -> int:
        return axis.extent if isinstance(axis.extent, int) else self.sizes[axis.extent]

    def apply(
        self,
        name: str,
        operands: Sequence[Named],
        attributes: Mapping[str, Any],
        axes: tuple[Axis, ...],
    ) -> torch.Tensor:
        if name == "elementwise":
            arguments = [laid_out(x, axes) for x in operands]
            made = self.elementwise(attributes["expr"], arguments)
            return made.expand([self.size(a) for a in axes])
        if name == "matmul":
            (x, left), (y, right) = operands
            letters = {a: chr(97 + i) for i, a in enumerate(dict.fromkeys((*left, *right)))}
            words = ["".join(letters[a] for a in some) for some in (left, right, axes)]
            x, y = x.to(self.dtype), y.to(self.dtype)  # one may be whole numbers
            return torch.einsum(f"{words[0]},{words[1]}->{words[2]}", x, y)
        if name == "index":
            return torch.arange(self.size(attributes["axis"]))
        x, own = operands[0]
        if name == "rename":
            return x
        if name == "mean":
            return x.mean([own.index(a) for a in attributes["axes"]])
        at = own.index(attributes["axis"])
        if name == "reduce":
            return SUMMARIES[attributes["combiner"]](x, at)
        if name in ("softmax", "log_softmax"):
            return getattr(torch, name)(x, at)
        made = self.norm(name, x.movedim(at, -1), [p for p, _ in operands[1:]], attributes)
        return laid_out((made, (*own[:at], *own[at + 1 :], own[at])), axes)

    def norm(
        self,
        name: str,
        x: torch.Tensor,
        parameters: list[torch.Tensor],
        attributes: Mapping[str, Any],
    ) -> torch.Tensor:
        shape, eps = x.shape[-1:], attributes["eps"]
        if name == "rmsnorm":
            return functional.rms_norm(x, shape, *parameters, eps=eps)
        weight = parameters[0] if attributes["weight"] else None
        bias = parameters[-1] if attributes["bias"] else None
        return functional.layer_norm(x, shape, weight, bias, eps)

    def elementwise(self, expr: Expr, arguments: list[torch.Tensor]) -> torch.Tensor:
        made: dict[Expr, Any] = {}
        for node in postorder(expr):
            made[node] = self.function(node, [made[a] for a in node.args], arguments)
        return torch.as_tensor(made[expr])

    def function(self, node: Expr, args: list[Any], arguments: list[torch.Tensor]) -> Any:
        if node.op == "arg":
            return arguments[node.value]
        if node.op == "cast":
            return args[0].to(
                self.dtype if node.value.is_float else getattr(torch, str(node.value))
            )
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if not tensors:
            return evaluate(node, [], self.size, lambda x, dtype: x)
        if node.op == "where":
            return torch.where(*args)
        if node.op in ("maximum", "minimum", "sub", "div"):
            args = [torch.as_tensor(a, dtype=tensors[0].dtype) for a in args]
        return FUNCTIONS.get(node.op, getattr(torch, node.op, None))(*args)


def laid_out(named: Named, axes: Sequence[Axis]) -> torch.Tensor:
    """A tensor with its axes in another order; where it lacks one, of length 1."""
    x, own = named
    x = x.permute([own.index(a) for a in axes if a in own])
    return x[tuple(slice(None) if a in own else None for a in axes)]
