"""Parts of common models at common sizes: the kernels of which seeds have the speeds.

They are written as models write them, because a part of a model is found by what it computes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-5


@dataclass(frozen=True)
class SeedCase:
    """A function, and the shapes of the arrays that it is tuned with."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)
    return weight * wide.to(x.dtype)


def add_rms_norm(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, rms_norm(total, weight)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, EPSILON)


def add_layer_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, layer_norm(total, weight, bias)


def norm_linear(x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(layer_norm(x, scale, shift), weight, bias)


def mlp(
    x: Tensor, scale: Tensor, shift: Tensor, up: Tensor, bias: Tensor, down: Tensor, last: Tensor
) -> Tensor:
    return x + F.linear(F.gelu(F.linear(layer_norm(x, scale, shift), up, bias)), down, last)


def gated_mlp(x: Tensor, scale: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    normal = rms_norm(x, scale)
    return x + F.linear(F.silu(F.linear(normal, gate)) * F.linear(normal, up), down)


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=query.shape[-2] > 1)


def written_out_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores: Tensor = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return scores.softmax(-1) @ value


FUNCTIONS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("softmax", lambda x: x.softmax(-1), "1 T D"),
    ("softmax of scores", lambda x: x.softmax(-1), "1 H T T"),
    ("log of softmax", lambda x: x.log_softmax(-1), "T V"),
    ("layer norm", layer_norm, "1 T D, D, D"),
    ("sum and layer norm", add_layer_norm, "1 T D, 1 T D, D, D"),
    ("RMS norm", rms_norm, "1 T D, D"),
    ("sum and RMS norm", add_rms_norm, "1 T D, 1 T D, D"),
    ("GELU", F.gelu, "1 T F"),
    ("SiLU times", lambda x, y: F.silu(x) * y, "1 T F, 1 T F"),
    ("layer norm and linear", norm_linear, "1 T D, D, D, G D, G"),
    ("GELU MLP", mlp, "1 T D, D, D, F D, F, D F, D"),
    ("SwiGLU MLP", gated_mlp, "1 T D, D, F D, F D, D F"),
    ("attention", causal_attention, "1 H T E, 1 H T E, 1 H T E"),
    ("written-out attention", written_out_attention, "1 H T E, 1 H T E, 1 H T E"),
    ("sums of rows", lambda x: x.sum(-1), "T D"),
    ("sums of columns", lambda x: x.sum(0), "T D"),
    ("mean of all", lambda x: x.mean(), "T D"),
)
"""The name of each, the function, and the axes of its arguments."""
MODELS = (
    {"D": 768, "F": 3072, "G": 2304, "H": 12, "E": 64, "V": 50257},  # GPT-2, BERT, ViT
    {"D": 1024, "F": 4096, "G": 3072, "H": 16, "E": 64, "V": 30522},  # their large ones
    {"D": 2048, "F": 8192, "G": 6144, "H": 32, "E": 64, "V": 128256},  # Llama of 1 billion
    {"D": 4096, "F": 14336, "G": 12288, "H": 32, "E": 128, "V": 128256},  # Llama of 8 billion
)
TOKENS = {"cpu": (1, 128, 512), "cuda": (1, 512, 2048)}
MOST_OPERATIONS = {"cpu": 5e9, "cuda": 1e13}
"""Longer calls are no cases: they would take minutes to tune."""
MOST_ELEMENTS = {"cpu": 1 << 24, "cuda": 1 << 28}
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}


def seed_cases(target: str, words: tuple[str, ...] = ()) -> list[SeedCase]:
    """The cases of a target whose name has one of the words; without words, all."""
    found: dict[tuple[object, ...], SeedCase] = {}
    for model in MODELS:
        for tokens in TOKENS[target]:
            sizes = {**model, "T": tokens}
            for name, function, axes in FUNCTIONS:
                case = _case(name, function, axes, sizes)
                is_wanted = not words or any(word in case.name for word in words)
                if is_wanted and _is_short(case, sizes, target):
                    found.setdefault((name, case.shapes), case)
    return [*found.values()]


def _case(name: str, function: Callable[..., Any], axes: str, sizes: dict[str, int]) -> SeedCase:
    arrays = [array.split() for array in axes.split(",")]
    shapes = tuple(tuple(sizes[a] if a in sizes else int(a) for a in array) for array in arrays)
    shown = ", ".join("x".join(map(str, shape)) for shape in shapes)
    return SeedCase(f"{name} {shown}", function, shapes)


def _is_short(case: SeedCase, sizes: dict[str, int], target: str) -> bool:
    """True if a case has few enough elements and operations to be tuned."""
    elements = [_product(shape) for shape in case.shapes]
    operations = 0.0
    if case.function in (norm_linear, mlp, gated_mlp):
        operations = 2.0 * sizes["T"] * sum(elements[1:])
    elif case.function in (causal_attention, written_out_attention):
        operations = 4.0 * sizes["T"] * elements[0]
    return sum(elements) <= MOST_ELEMENTS[target] and operations <= MOST_OPERATIONS[target]


def _product(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
