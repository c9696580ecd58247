"""Random models of several dtypes, run on a stand-in for a GPU: `python mixed_dtypes.py SEED …`.

Each seed prints its model, its error against float64 and the error that is allowed: twice eager's
and a floor. Products round as tensor cores do. After the word `coarse`, products round as if the
dtypes of the model did not matter. It needs TRITON_INTERPRET=1.
"""

import json
import random
import sys
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

from blockbuster_fusion.nest.analysis import product_types
from helpers.stand_in_gpu import installed
from helpers.torch_running import Watched

ROWS, INNER, COLUMNS = 17, 33, 21
"""Ragged sizes, all different."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
STEPS = 4


# ---------------------------------------------------------------- tensor cores


def _as_multiplied(x: Any, precision: object) -> np.ndarray:
    """The numbers that a tensor core multiplies: bfloat16 as it is, float32 perhaps as TF32."""
    data: np.ndarray = x.data
    if x.dtype.scalar == tl.bfloat16:
        return (data.astype(np.uint32) << 16).view(np.float32)
    if x.dtype.scalar == tl.float32 and str(precision).endswith("TF32"):
        bits = np.ascontiguousarray(data).view(np.uint32) + np.uint32(1 << 12)
        return (bits & np.uint32(0xFFFFE000)).view(np.float32)
    return data


def _dot(self: Any, a: Any, b: Any, d: Any, precision: object, _: int) -> Any:
    """A product as a GPU makes it: Triton's interpreter takes bfloat16 for whole numbers."""
    left, right = (_as_multiplied(x, precision) for x in (a, b))
    made = np.matmul(left, right, dtype=d.data.dtype) + d.data
    return interpreter.TensorHandle(made, d.dtype.scalar)


@contextmanager
def tensor_cores() -> Any:
    """Dots of the interpreter round as those of a GPU do."""
    with mock.patch.object(interpreter.InterpreterBuilder, "create_dot", _dot):
        yield


def coarse() -> Any:
    """Products round to whatever one operand is stored as."""
    return mock.patch.object(product_types, "_is_exact_enough", return_value=True)


# ---------------------------------------------------------------- models

Model = Callable[..., Tensor]


def _softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def _norm(x: Tensor) -> Tensor:
    wide = x.float() if x.dtype is not torch.float64 else x
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "scaled": lambda x: x * 1.1 + 0.3,
    "softmax": _softmax,
    "norm": _norm,
}


class Mixed:
    """A model: rows go through functions, conversions and products with weights."""

    def __init__(self, seed: int) -> None:
        r = random.Random(seed)
        g = torch.Generator().manual_seed(seed)
        self.lines: list[tuple[str, Any]] = []
        width, dtype = INNER, r.choice(FLOATS)
        self.inputs = [torch.randn(ROWS, width, generator=g).to(dtype)]
        while len(self.lines) < STEPS or not any(kind == "product" for kind, _ in self.lines):
            kind = r.choice(["unary", "cast", "product", "product"])
            if kind == "unary":
                self.lines.append((kind, r.choice([*UNARY])))
            elif kind == "cast":
                self.lines.append((kind, r.choice(FLOATS)))
            else:
                other, common = (
                    COLUMNS if width == INNER else INNER,
                    r.choice((torch.float32, *FLOATS)),
                )
                weight = torch.randn(width, other, generator=g).to(r.choice(FLOATS))
                self.inputs.append(weight)
                self.lines.append((kind, common))
                width = other
        self.text = f"{dtype} " + "; ".join(f"{kind} {what}" for kind, what in self.lines)
        self.text += f"; weights {[str(w.dtype) for w in self.inputs[1:]]}"

    def run(self, x: Tensor, *weights: Tensor, exact: bool = False) -> Tensor:
        """The model; an exact one converts nothing."""
        left = iter(weights)
        for kind, what in self.lines:
            if kind == "unary":
                x = UNARY[what](x)
            elif kind == "cast":
                x = x if exact else x.to(what)
            else:
                w = next(left)
                x = x @ w if exact else x.to(what) @ w.to(what)
        return x

    def __call__(self, x: Tensor, *weights: Tensor) -> Tensor:
        return self.run(x, *weights)


def judged(seed: int) -> dict[str, Any]:
    """A model with its error, and the error that is allowed."""
    model = Mixed(seed)
    exact = model.run(*(x.double() for x in model.inputs), exact=True)

    def error(found: Tensor) -> float:
        return float((found.double() - exact).norm() / exact.norm())

    eager = model(*model.inputs)
    made = Watched(model.__call__, dynamic=False, target="cuda", library="never", strict=False)
    found = made(*model.inputs)
    sources = [x.executable.source for graph in made.graphs for x in graph.fused]
    assert any("tl.dot(" in source for source in sources), model.text
    assert found.dtype is eager.dtype
    allowed = 2 * max(error(eager), torch.finfo(eager.dtype).eps)
    own = error(found)
    return {"seed": seed, "model": model.text, "error": own, "allowed": allowed}


if __name__ == "__main__":
    torch.manual_seed(0)
    is_coarse = sys.argv[1] == "coarse"
    with installed() as gpu, tensor_cores(), coarse() if is_coarse else nullcontext():
        rows = [judged(int(word)) for word in sys.argv[1 + is_coarse :]]
        assert not gpu.problems, gpu.problems
    print(json.dumps(rows))
