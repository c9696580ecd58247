"""Programs of exponentials with their PyTorch forms, and inputs that overflow without care.

Each is judged against PyTorch in float64. It may lose twice as much as PyTorch's careful operators
lose in the dtype of the inputs. Sums of signed terms may lose 4 units in the last place of the sum
of their absolute values.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import blockbuster_fusion as bb

ops = bb.ops
Arrays = dict[str, np.ndarray]
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Form:
    """A program, and the same in careful PyTorch."""

    function: Callable[..., Any]
    careful: Callable[..., torch.Tensor]
    specs: Mapping[str, str]
    sized: bool = False
    """Its sums have terms of both signs: weights are taken by their size to see how large."""

    def traced(self) -> bb.ArrayProgram:
        return bb.trace(self.function, **self.specs)

    def inputs(self, kind: str, seed: int = 0) -> Arrays:
        """Inputs of a kind, in float32."""
        rng = np.random.default_rng(seed)
        made = {
            name: np.float32(rng.normal(size=[SIZES[axis] for axis in spec.split()]))
            for name, spec in self.specs.items()
        }
        logits = [made[name] for name, spec in self.specs.items() if spec == "M N" and name != "F"]
        for number, x in enumerate(logits):
            KINDS[kind](x, number)
        return made

    def reference(self, inputs: Arrays, dtype: torch.dtype) -> np.ndarray:
        """The careful form in a dtype."""
        given = [torch.from_numpy(np.asarray(x)).to(dtype) for x in inputs.values()]
        return self.careful(*given).double().numpy()

    def floor(self, inputs: Arrays, eps: float) -> float:
        """The error, in norm, that rounding each term of the sums may cause."""
        if not self.sized:
            return 0.0
        last = list(inputs)[-1]
        sizes = self.reference({**inputs, last: np.abs(inputs[last])}, torch.float64)
        return 4 * eps * float(np.linalg.norm(sizes[np.isfinite(sizes)]))


SIZES = {"M": 13, "N": 45, "L": 7}


def _offset(x: np.ndarray, number: int) -> None:
    x += 1000


def _far(x: np.ndarray, number: int) -> None:
    x += -3e4 if number else 1e5


def _hidden(x: np.ndarray, number: int) -> None:
    x[2] = LOWEST
    x[3, 5:] = LOWEST


def _infinite(x: np.ndarray, number: int) -> None:
    if number == 0:
        x[1, 3] = np.inf
        x[2, 4] = np.nan
        x[3] = -np.inf
        x[4, 7] = -np.inf
        x[5, 2], x[5, 3] = np.inf, -np.inf
        x[6, 4] = x[6, 40] = np.inf


KINDS: dict[str, Callable[[np.ndarray, int], None]] = {
    "ordinary": lambda x, number: None,
    "offset": _offset,
    "far": _far,
    "hidden": _hidden,
    "infinite": _infinite,
}


def _two_to(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp2(x - x.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def _softmax2(X: Any) -> Any:
    e = ops.exp2(X)
    return e / e.sum(-1, keepdims=True)


def _both(A: Any, B: Any) -> Any:
    return ops.softmax(A) * ops.softmax(B)


def _careful_both(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return torch.softmax(A, -1) * torch.softmax(B, -1)


FORMS = {
    "product": Form(_both, _careful_both, {"A": "M N", "B": "M N"}),
    "product_contracted": Form(
        lambda A, B, V: _both(A, B) @ V,
        lambda A, B, V: _careful_both(A, B) @ V,
        {"A": "M N", "B": "M N", "V": "N L"},
        sized=True,
    ),
    "quotient": Form(
        lambda A, B: ops.softmax(A) / (1 + ops.softmax(B)),
        lambda A, B: torch.softmax(A, -1) / (1 + torch.softmax(B, -1)),
        {"A": "M N", "B": "M N"},
    ),
    "factor": Form(
        lambda L, F: (ops.softmax(L) * F).sum(-1),
        lambda L, F: (torch.softmax(L, -1) * F).sum(-1),
        {"L": "M N", "F": "M N"},
        sized=True,
    ),
    "powers_of_two": Form(
        lambda X, V: _softmax2(X) @ V,
        lambda X, V: _two_to(X) @ V,
        {"X": "M N", "V": "N L"},
        sized=True,
    ),
    "softmax": Form(lambda X: ops.softmax(X), lambda X: torch.softmax(X, -1), {"X": "M N"}),
    "softmax_contracted": Form(
        lambda X, W: ops.softmax(X) @ W,
        lambda X, W: torch.softmax(X, -1) @ W,
        {"X": "M N", "W": "N L"},
        sized=True,
    ),
    "log_softmax": Form(
        lambda X: ops.log_softmax(X), lambda X: torch.log_softmax(X, -1), {"X": "M N"}
    ),
    "logsumexp": Form(
        lambda X: ops.log(ops.exp(X).sum(-1)), lambda X: torch.logsumexp(X, -1), {"X": "M N"}
    ),
    "sum_of_exp": Form(lambda X: ops.exp(X).sum(-1), lambda X: X.exp().sum(-1), {"X": "M N"}),
    "exp_contracted": Form(
        lambda X, W: ops.exp(X) @ W, lambda X, W: X.exp() @ W, {"X": "M N", "W": "N L"}, sized=True
    ),
}
NATIVE = ("sum_of_exp", "exp_contracted")
"""Forms that overflow in PyTorch as well where exponents are large."""


def cases() -> Iterator[tuple[str, str]]:
    """Forms, each with a kind of inputs."""
    for name in FORMS:
        for kind in KINDS:
            large = kind in ("offset", "far")
            overflows = name in NATIVE and large
            if not overflows and (name, kind) != ("powers_of_two", "infinite"):
                yield name, kind


# ---------------------------------------------------------------- logarithms of few exponentials


def _points() -> tuple[np.ndarray, np.ndarray]:
    ends = [1e-3, -1e-3, 1e4, -1e4, np.inf, -np.inf, np.nan]
    x = np.float32([*np.linspace(-120, 120, 241), *ends])
    return x, np.float32(np.random.default_rng(0).permutation(x))


POINTS = _points()


def _zero(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x)


LOGARITHMS: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor]]] = {
    "softplus": (lambda X, Y: ops.softplus(X), lambda X, Y: torch.logaddexp(X, _zero(X))),
    "log1p": (
        lambda X, Y: ops.log1p(ops.exp(X)),
        lambda X, Y: torch.logaddexp(X, _zero(X)),
    ),
    "one_plus": (
        lambda X, Y: ops.log(1 + ops.exp(X)),
        lambda X, Y: torch.logaddexp(X, _zero(X)),
    ),
    "log_sigmoid": (
        lambda X, Y: -ops.log(ops.sigmoid(X)),
        lambda X, Y: torch.logaddexp(-X, _zero(X)),
    ),
    "small": (
        lambda X, Y: ops.log(1 + ops.exp(-ops.abs(X))),
        lambda X, Y: torch.log1p(torch.exp(-X.abs())),
    ),
    "logcosh": (
        lambda X, Y: ops.log(ops.exp(X) + ops.exp(-X)),
        lambda X, Y: torch.logaddexp(X, -X),
    ),
    "logaddexp": (
        lambda X, Y: ops.log(ops.exp(X) + ops.exp(Y)),
        lambda X, Y: torch.logaddexp(X, Y),
    ),
    "logaddexp2": (
        lambda X, Y: ops.log2(ops.exp2(X) + ops.exp2(Y)),
        lambda X, Y: torch.logaddexp2(X, Y),
    ),
    "three": (
        lambda X, Y: ops.log(1 + ops.exp(X) + ops.exp(Y)),
        lambda X, Y: torch.logaddexp(torch.logaddexp(X, Y), _zero(X)),
    ),
    "weighted": (
        lambda X, Y: ops.log(2 * ops.exp(X) + 3 * ops.exp(Y)),
        lambda X, Y: torch.logaddexp(X + np.log(2), Y + np.log(3)),
    ),
}
